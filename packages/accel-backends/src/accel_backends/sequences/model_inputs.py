"""What a model must be given to compute a part of a sequence: places of tokens, and the padding of all ranks."""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from accel_backends.plans.transformers_models import check_attention_is_sdpa, modules_with_config
from accel_backends.sequences.sharing import SequenceSharing
from accel_backends.sequences.tokens import SharedTokens
from accel_backends.wrapped_forward import WrappedForward
from accel_state.errors import ConfigError

_MASK, _POSITIONS = "attention_mask", "position_ids"
_masks_are_unused = ContextVar("masks_are_unused", default=False)


class SharedInputs(WrappedForward):
    """A forward that knows where its tokens stand, and whose padding mask is that of whole sequences.

    The padding mask is taken out of the arguments: what a model would make of a part of it would be wrong.

    Args:
        module: The module; its forward may take neither a mask nor positions.
        sharing: Which sequences are shared now.
    """

    is_traceable = False  # torch traces no change of what is shared

    def __init__(self, module: nn.Module, sharing: SequenceSharing) -> None:
        super().__init__(module.forward)
        self.sharing = sharing
        self.signature = inspect.signature(module.forward)
        self._kind = type(module).__name__
        self._of_transformers = modules_with_config(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tokens = self.sharing.tokens_of((args, kwargs), kind=self._kind)
        if tokens is None:
            return self.original(*args, **kwargs)
        for module in self._of_transformers:
            check_attention_is_sdpa(module)  # before the model makes masks for another one
        given = self.signature.bind(*args, **kwargs)
        positions = given.arguments.get(_POSITIONS)
        mask = given.arguments.get(_MASK)
        if mask is not None:
            tokens = tokens.with_mask(_checked(mask, tokens))
            given.arguments[_MASK] = None
        elif positions is not None and positions.shape[1:] == (tokens.num_local,):
            tokens = tokens.with_positions(positions)
        if positions is None and _POSITIONS in self.signature.parameters:
            device = next(one.device for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
            given.arguments[_POSITIONS] = tokens.cut.positions(tokens.num_tokens, device)[None]
        if self._of_transformers:
            _let_masks_be_left_out()
        leaving_out = _masks_are_unused.set(True)
        try:
            with self.sharing.using(tokens):
                return self.original(*given.args, **given.kwargs)
        finally:
            _masks_are_unused.reset(leaving_out)


def share_inputs(model: nn.Module, sharing: SequenceSharing) -> None:
    """Let a model, or the outermost modules in it that take padding masks or positions, have them of whole sequences.

    The model itself is always one that tells whether it is given parts of what is shared.
    """
    if not isinstance(model.forward, SharedInputs):
        model.forward = SharedInputs(model, sharing)
    if not _takes_any(model):
        for child in model.children():
            _share_inside(child, sharing)


def _share_inside(module: nn.Module, sharing: SequenceSharing) -> None:
    if _takes_any(module):
        share_inputs(module, sharing)
        return
    for child in module.children():
        _share_inside(child, sharing)


@functools.cache
def _let_masks_be_left_out() -> None:
    """Make transformers build no mask for pairs of a rank's tokens, which attention over all tokens would drop."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as FUNCTIONS

    usual = FUNCTIONS["sdpa"]

    def mask(*args: Any, **kwargs: Any) -> Any:
        return None if _masks_are_unused.get() else usual(*args, **kwargs)

    FUNCTIONS.register("sdpa", mask)


def _takes_any(module: nn.Module) -> bool:
    return bool({_MASK, _POSITIONS} & inspect.signature(module.forward).parameters.keys())


def _checked(mask: Any, tokens: SharedTokens) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[1] != tokens.num_local:
        found = f"of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"a `{type(mask).__name__}`"
        raise ConfigError(
            f"`attention_mask` is {found}, but where ranks share sequences it must say for each of this rank's "
            f"{tokens.num_local} tokens whether it is padding: `(batch, {tokens.num_local})`, cut like the tokens. "
            "Masks for pairs of tokens are not possible, nor is a cache, as in `generate`."
        )
    return mask
