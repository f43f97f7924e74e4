"""Tied weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_bigmodel.hooks.base import ModelHook, add_hook_to_module
from accel_bigmodel.offload.placeholders import stored_values
from accel_bigmodel.tensors import as_parameter_like, owner_of
from accel_ops.named_tensors import NamedTensor, named_tensors, tied_names


def find_tied_parameters(model: nn.Module, **kwargs: bool) -> list[list[str]]:
    """Return the groups of names of tied parameters, each group and the list sorted.

    Works on any device, meta included: a tie is two names for one ``Parameter`` object, not equal values.

    Args:
        model: The model.
        kwargs: Unused, accepted for compatibility.
    """
    return sorted(sorted(group) for group in tied_names(model))


def retie_parameters(model: nn.Module, tied_params: Sequence[Sequence[str]]) -> None:
    """Tie the parameters of each group again, to the first one that is not on the meta device.

    Raises:
        UnknownNameError: If the model has no such parameter.
    """
    for group in tied_params:
        places = [(*owner_of(model, name), name) for name in group]
        parameters = [owner._parameters[inner] for owner, inner, _ in places]
        real = [parameter for parameter in parameters if parameter is not None and not parameter.is_meta]
        kept = (real or [parameter for parameter in parameters if parameter is not None])[0]
        for owner, inner, _ in places:
            setattr(owner, inner, kept)


def check_tied_parameters_in_config(model: nn.Module) -> bool:
    """Whether the config of a transformers model specifies tied weights.

    The weights need not be tied yet. `find_tied_parameters` returns the weights that are tied, of any model.

    Args:
        model: Any model; False without a config, or without an output layer to tie.
    """
    config: Any = getattr(model, "config", None)
    if config is None:
        return False
    of_text: Any = getattr(config, "get_text_config", None)
    if callable(of_text):
        config = of_text()
    output: Any = getattr(model, "get_output_embeddings", None)
    ties_words = (
        bool(getattr(config, "tie_word_embeddings", False)) and callable(output) and output() is not None
    )
    ties_halves = bool(getattr(config, "is_encoder_decoder", False)) and bool(
        getattr(config, "tie_encoder_decoder", False)
    )
    return ties_words or ties_halves


def ensure_weights_retied(
    param_init_fn: Callable[[nn.Module], Any], model: nn.Module, device: torch.device
) -> Callable[[nn.Module], Any]:
    """Return a wrapper of ``param_init_fn`` that keeps the weights tied that are tied in ``model`` now.

    Without it, a function that allocates the modules of a skeleton one by one allocates a tied weight once per module
    and so unties it.

    Args:
        param_init_fn: Allocates the direct parameters of the module it is called with, such as
            ``lambda module: module.to_empty(device=device, recurse=False)``.
        model: Usually on the meta device.
        device: Device of tied weights that ``param_init_fn`` leaves on the meta device.
    """
    # Keep the tensors alive: after one is freed, a new tensor may get its `id`.
    parameters = named_tensors(model, include_buffers=False)
    tied = {id(named.tensor): named.tensor for named in parameters if len(named.names) > 1}
    if not tied:
        return param_init_fn
    made: dict[int, nn.Parameter] = {}

    def init_and_retie(module: nn.Module) -> Any:
        before = {name: id(p) for name, p in module._parameters.items() if p is not None and id(p) in tied}
        result = param_init_fn(module)
        for name, key in before.items():
            if key not in made:
                fresh = module._parameters[name]
                assert fresh is not None
                if fresh.is_meta:
                    fresh = as_parameter_like(tied[key], torch.empty_like(tied[key].detach(), device=device))
                made[key] = fresh
            setattr(module, name, made[key])
        return result

    return init_and_retie


def remember_ties(model: nn.Module, tied: Iterable[NamedTensor]) -> None:
    """Save tied weights once, even if devices have copies: equal copies are one tensor in state dicts.

    Args:
        model: Gets a hook if a weight is no longer one parameter.
        tied: The weights that were tied, of any shape and device.
    """
    groups = [each.names for each in tied if len({id(getattr(*place)) for place in each.places}) > 1]
    if groups:
        add_hook_to_module(model, _RetieHook(groups), append=True)


class _RetieHook(ModelHook):
    """Puts one tensor under all names of equal copies in state dicts, as long as the hook is on the model."""

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self._groups = groups
        self._handle: Any = None

    def init_hook(self, module: nn.Module) -> nn.Module:
        untyped: Any = module
        # A partial, because torch sets an attribute on the hook, which bound methods do not allow.
        self._handle = untyped.register_state_dict_post_hook(functools.partial(self._retie))
        return module

    def detach_hook(self, module: nn.Module) -> nn.Module:
        self._handle.remove()
        return module

    def _retie(
        self, module: nn.Module, state: MutableMapping[str, Any], prefix: str, metadata: Mapping[str, Any]
    ) -> None:
        for group in self._groups:
            first, *others = [prefix + name for name in group if prefix + name in state] or [""]
            for other in others:
                kept, copy = stored_values(state[first]), stored_values(state[other])
                if copy.dtype == kept.dtype and torch.equal(kept, copy.to(kept.device)):
                    state[other] = state[first]
