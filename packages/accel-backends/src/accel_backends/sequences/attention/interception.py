"""Lets the attention modules of a model compute with other ranks, whatever is between them and torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from accel_backends.sequences.attention.call import AttentionCall, SharedAttention
from accel_backends.sequences.sharing import SequenceSharing
from accel_backends.sequences.tokens import SharedTokens, is_alike
from accel_backends.wrapped_forward import WrappedForward
from accel_state.errors import ConfigError


class InterceptedAttention(WrappedForward):
    """The forward of an attention module, whose call of `scaled_dot_product_attention` is computed by all ranks.

    Args:
        original: The forward.
        name: The module's name in the model, for errors.
        sharing: Which sequences are shared now.
        attend: How ranks compute together.
        window: How many tokens each sees at most; None: any number.
        of_transformers: The module, if it is one of transformers: its argument ``attention_mask`` was made from this
            rank's tokens then, and says nothing that is not known of the tokens of all.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        *,
        name: str,
        sharing: SequenceSharing,
        attend: SharedAttention,
        window: int | None = None,
        of_transformers: nn.Module | None = None,
    ) -> None:
        super().__init__(original)
        self.name = name
        self.sharing = sharing
        self.attend = attend
        self.window = window
        self.of_transformers = of_transformers
        self.signature = inspect.signature(original)
        self._last: SharedTokens | None = None
        self._is_rerun = True
        self._is_ambiguous = False

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tokens = self._tokens()
        if tokens is None:
            return self.original(*args, **kwargs)
        if self.of_transformers is not None:
            given = self.signature.bind(*args, **kwargs)
            if "attention_mask" in given.arguments:
                given.arguments["attention_mask"] = None
            args, kwargs = given.args, given.kwargs
        with _Interception(self, tokens) as interception:
            result = self.original(*args, **kwargs)
        if not interception.has_intercepted:
            raise ConfigError(
                f"`{self.name}` does not compute its attention by `torch.nn.functional.scaled_dot_product_attention`, "
                f"which {tokens.cut.size} ranks that share sequences compute together; in others, such as "
                "`flex_attention`, tokens would see those of their own rank alone. Load a model of transformers with "
                '`attn_implementation="sdpa"`, or call that function in the module.'
            )
        return result

    def _tokens(self) -> SharedTokens | None:
        """Return the sequences to compute with: in the second run of a forward pass, those of the first."""
        tokens = self.sharing.tokens
        if not torch.is_grad_enabled() or self.sharing.is_bound:
            return tokens
        if torch._C._current_graph_task_id() == -1:  # no backward pass runs
            if tokens is None:
                self.sharing.tell_of_whole_sequences()
            self._is_ambiguous = not self._is_rerun and not is_alike(tokens, self._last)
            self._last, self._is_rerun = tokens, False
            return tokens
        self._is_rerun = True
        if self._is_ambiguous:
            raise ConfigError(
                f"`{self.name}` ran forward on two batches, of other padding or length, before this backward pass. It "
                "computes one of them again, and cannot know which. Checkpoint activations by "
                "`FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=True)`, or go backward after "
                "each, and use `torch.no_grad()` where there is no backward pass."
            )
        return self._last


# Why: docs/decisions/0016-context-parallelism.md
class _Interception(TorchFunctionMode):
    """Within it, `scaled_dot_product_attention` is computed by all ranks."""

    def __init__(self, attention: InterceptedAttention, tokens: SharedTokens) -> None:
        super().__init__()
        self._attention = attention
        self._tokens = tokens
        self.has_intercepted = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.has_intercepted = True
        return self._computed(*args, **(kwargs or {}))

    def _computed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        attention, tokens = self._attention, self._tokens
        found = (query.shape[-2], key.shape[-2])
        if found != (tokens.num_local, tokens.num_local):
            raise ConfigError(
                f"`{attention.name}` has {found[0]} queries and {found[1]} keys, but each rank has {tokens.num_local} "
                "tokens of the sequences that are shared now. Meanwhile neither a cache, as in `generate`, nor other "
                "sequences, nor attention over those of an encoder are possible. Do it outside of the block or the "
                "loop in which sequences are shared."
            )
        if attn_mask is not None:
            raise ConfigError(
                f"`{attention.name}` passes a mask of its own, of shape {tuple(attn_mask.shape)}, to "
                "`scaled_dot_product_attention`, and nobody knows what it would be for tokens of other ranks. Pass "
                "`is_causal=True` there, and the padding mask of `(batch, tokens)` to the model as `attention_mask`."
            )
        if attention.window is not None and not is_causal:
            raise ConfigError(
                f"`{attention.name}` lets tokens see {attention.window} others on both sides (`sliding_window`), which "
                "ranks that share sequences do for earlier tokens only. Set `cp_size` and `sp_size` to 1."
            )
        call = AttentionCall(
            tokens,
            is_causal=is_causal,
            window=attention.window,
            dropout=dropout_p,
            scale=scale,
            has_groups=enable_gqa,
        )
        return attention.attend(query, key, value, call)
