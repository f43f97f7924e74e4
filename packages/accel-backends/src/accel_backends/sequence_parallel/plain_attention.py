"""The attention of modules that call `scaled_dot_product_attention` themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from accel_backends.sequence_parallel.attention import sequence_attention
from accel_backends.sequence_parallel.sharing import SequenceSharing
from accel_backends.sequence_parallel.tokens import SharedTokens
from accel_backends.wrapped_forward import WrappedForward
from accel_state.errors import ConfigError


class PlainAttention(WrappedForward):
    """The forward of an attention module, whose call of `scaled_dot_product_attention` is computed by all ranks.

    Args:
        original: The forward.
        name: The module's name in the model, for errors.
        sharing: Which sequences are shared now.
    """

    def __init__(self, original: Callable[..., Any], *, name: str, sharing: SequenceSharing) -> None:
        super().__init__(original)
        self.name = name
        self.sharing = sharing
        self._was_sharded = False

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # During a backward pass a forward is computed again, and nothing noted what was shared before. torch 2.13 has
        # no public name for whether one runs.
        is_rerun = torch._C._current_graph_task_id() != -1 and not self.sharing.is_bound
        if is_rerun and self._was_sharded:
            raise ConfigError(
                f"`{self.name}` is computed again in a backward pass, where it is unknown which tokens it was given. "
                "Checkpoint activations by `FullyShardedDataParallelPlugin(fsdp_version=2, "
                "activation_checkpointing=True)`."
            )
        tokens = self.sharing.tokens
        if tokens is None:
            return self.original(*args, **kwargs)
        self._was_sharded = True
        with _Mode(self.name, tokens) as mode:
            result = self.original(*args, **kwargs)
        if not mode.has_computed:
            raise ConfigError(
                f"`{self.name}` does not compute its attention by `torch.nn.functional.scaled_dot_product_attention`, "
                f"which {tokens.cut.size} ranks that share sequences compute together; in others, such as "
                "`flex_attention`, tokens would see those of their own rank alone. Load a model of transformers with "
                '`attn_implementation="sdpa"`, or call that function in the module.'
            )
        return result


class _Mode(TorchFunctionMode):
    """Within it, `scaled_dot_product_attention` is computed by all ranks."""

    def __init__(self, name: str, tokens: SharedTokens) -> None:
        super().__init__()
        self._name = name
        self._tokens = tokens
        self.has_computed = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.has_computed = True
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
        if attn_mask is not None:
            raise ConfigError(
                f"`{self._name}` passes a mask of its own, of shape {tuple(attn_mask.shape)}, to "
                "`scaled_dot_product_attention`, and nobody knows what it would be for tokens of other ranks. Pass "
                "`is_causal=True` there, and the padding mask of `(batch, tokens)` to the model as `attention_mask`."
            )
        return sequence_attention(
            query, key, value, self._tokens, is_causal=is_causal, dropout=dropout_p, scale=scale
        )
