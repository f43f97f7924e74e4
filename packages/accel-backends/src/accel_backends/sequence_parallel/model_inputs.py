"""The inputs of a model that computes shards of sequences: positions, and the padding of all ranks."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from accel_backends.plans.transformers_models import check_attention_is_sdpa, modules_with_config
from accel_backends.sequence_parallel.sharing import SequenceSharing
from accel_backends.sequence_parallel.tokens import SharedTokens
from accel_backends.sequence_parallel.transformers_attention import KEYWORD, on_shards, takes_tokens
from accel_backends.wrapped_forward import WrappedForward
from accel_state.errors import ConfigError

_MASK, _POSITIONS = "attention_mask", "position_ids"


class SharedInputs(WrappedForward):
    """A forward that has the positions of its tokens, and whose padding mask is that of full sequences.

    The padding mask is removed from the arguments: what a model would make of its shard would be wrong.

    Args:
        module: The module; its forward may take neither a mask nor positions.
        sharing: Which sequences are shared now.
        is_inside: Another one around it has read mask and positions already.
    """

    is_traceable = False  # torch traces no change of what is shared

    def __init__(self, module: nn.Module, sharing: SequenceSharing, *, is_inside: bool) -> None:
        super().__init__(module.forward)
        self.sharing = sharing
        self.signature = inspect.signature(module.forward)
        self._kind = type(module).__name__
        self._is_inside = is_inside
        self._of_transformers = modules_with_config(module)
        self._takes_tokens = takes_tokens(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tokens = self.sharing.tokens_of((args, kwargs), kind=self._kind)
        if tokens is None:
            if torch.is_grad_enabled():
                self.sharing.tell_of_whole_sequences()
            return self.original(*args, **kwargs)
        for module in self._of_transformers:
            check_attention_is_sdpa(module)  # before the model makes masks for another one
        given = self.signature.bind(*args, **kwargs)
        positions = given.arguments.get(_POSITIONS, kwargs.get(_POSITIONS))
        mask = given.arguments.get(_MASK)
        if not self._is_inside:
            if mask is not None:
                tokens = tokens.with_mask(_checked(mask, tokens))
                given.arguments[_MASK] = None
            elif positions is not None and positions.shape[1:] == (tokens.num_local,):
                tokens = tokens.with_positions(positions)
        if positions is None and _POSITIONS in self.signature.parameters:
            device = next(one.device for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
            given.arguments[_POSITIONS] = tokens.cut.positions(tokens.num_tokens, device)[None]
        keywords = {KEYWORD: tokens} if self._takes_tokens else {}
        with self.sharing.using(tokens), on_shards():
            return self.original(*given.args, **given.kwargs, **keywords)


def share_inputs(model: nn.Module, sharing: SequenceSharing) -> None:
    """Wrap the forwards of a model that need to know of full sequences: see `SharedInputs`.

    That of the model itself, which checks that it is given shards; of the outermost modules in it that take padding
    masks or positions; and of the outermost ones whose attention is given the tokens by keyword.
    """
    _share(model, sharing, is_root=True, is_inside=False)


def _share(module: nn.Module, sharing: SequenceSharing, *, is_root: bool, is_inside: bool) -> None:
    takes_any, ends = _takes_any(module), takes_tokens(module)
    is_wrapped = isinstance(module.forward, SharedInputs)
    if not is_wrapped and (is_root or ends or (takes_any and not is_inside)):
        module.forward = SharedInputs(module, sharing, is_inside=is_inside)
    if not ends:
        for child in module.children():
            _share(child, sharing, is_root=False, is_inside=is_inside or takes_any)


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
