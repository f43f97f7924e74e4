"""The attention of transformers' models: one function that is registered with their attention interface.

A model passes what it is called with by keyword on to its attention, so `SharedTokens` arrive there as an argument,
also where a layer is computed again for the backward pass. Without them, or in other models, the function that was
registered before computes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from accel_backends.sequence_parallel.attention import sequence_attention
from accel_backends.sequence_parallel.tokens import SharedTokens
from accel_state.errors import ConfigError

KEYWORD = "shared_tokens"
_SDPA = "sdpa"
_is_sharded = False
"""Whether a model runs forward on shards. Of the process: torch's compiler traces no `ContextVar`."""


def takes_tokens(module: nn.Module) -> bool:
    """Whether ``module`` is a model of transformers that passes keywords on to registered attention."""
    # Not of the instance: PEFT passes attribute access on to the model inside it.
    if not getattr(type(module), "_supports_attention_backend", False):
        return False
    parameters = inspect.signature(module.forward).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


@contextmanager
def on_shards() -> Iterator[None]:
    """Build no masks for pairs of local tokens in the block, and raise where attention is given no `SharedTokens`."""
    global _is_sharded
    outer, _is_sharded = _is_sharded, True
    try:
        yield
    finally:
        _is_sharded = outer


# Why: docs/decisions/0016-context-parallelism.md
@functools.cache
def register() -> None:
    """Register the function, and that for masks, as transformers' ``sdpa``: models keep the name in their config."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    FUNCTIONS.register(_SDPA, functools.partial(_attention, FUNCTIONS[_SDPA]))
    MASKS.register(_SDPA, functools.partial(_mask, MASKS[_SDPA]))


def _mask(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return None if _is_sharded else original(*args, **kwargs)


def _attention(
    original: Callable[..., Any], module: nn.Module, *args: Any, shared_tokens: Any = None, **kwargs: Any
) -> Any:
    if shared_tokens is not None:
        return _sequence_attention(module, *args, tokens=shared_tokens, **kwargs)
    if _is_sharded:
        raise ConfigError(
            f"`{type(module).__name__}` was not passed the keyword arguments of its model, so its tokens would see "
            "those of their own rank alone. Set `cp_size` and `sp_size` to 1."
        )
    return original(module, *args, **kwargs)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _sequence_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    *,
    tokens: SharedTokens,
    sliding_window: int | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    settings["attention_mask"] = attention_mask
    for name in ("attention_mask", "softcap", "s_aux", "position_bias"):
        if settings.get(name) is not None:
            raise ConfigError(
                f"`{type(module).__name__}` computes attention with `{name}`, which ranks that share sequences cannot "
                "compute together. Set `cp_size` and `sp_size` to 1."
            )
    output = sequence_attention(
        query,
        key,
        value,
        tokens,
        is_causal=getattr(module, "is_causal", True) if is_causal is None else is_causal,
        window=sliding_window,
        dropout=dropout,
        scale=scaling,
    )
    return output.transpose(1, 2).contiguous(), None
