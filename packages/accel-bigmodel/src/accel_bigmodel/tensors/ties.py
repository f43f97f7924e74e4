"""Weights that a model shares between its parts: whether its config says so, and how they stay shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_bigmodel.hooks.attaching import add_hook_to_module
from accel_bigmodel.hooks.protocol import ModelHook
from accel_bigmodel.offload.placeholders import stored_values
from accel_bigmodel.tensors.kinds import as_parameter_like
from accel_bigmodel.tensors.module_tensors import find_tied_parameters


def check_tied_parameters_in_config(model: nn.Module) -> bool:
    """Whether the config of a transformers model says that some of its weights are tied.

    The weights need not be tied yet. `find_tied_parameters` finds those that are, in any model.

    Args:
        model: Any model; without a config that says so, and an output to tie, the answer is no.
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
    """Return ``param_init_fn``, made to leave weights tied that are tied in ``model`` now.

    A function that gives each module of a skeleton its memory, one after the other, gives tied weights memory
    several times and so unties them.

    Args:
        param_init_fn: Gives the module it is called with its own parameters, such as
            ``lambda module: module.to_empty(device=device, recurse=False)``.
        model: Usually on the meta device.
        device: Where tied weights are made if ``param_init_fn`` leaves them on meta.
    """
    by_name = dict(model.named_parameters(remove_duplicate=False))
    # The tensors themselves are kept: by its address alone, another could be taken for one of them.
    tied = {id(by_name[group[0]]): by_name[group[0]] for group in find_tied_parameters(model)}
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


def remember_ties(model: nn.Module, tied_params: Sequence[Sequence[str]]) -> None:
    """Let state dicts of ``model`` show ties that had to be cut, because a device or more got a copy of its own.

    As long as the copies are equal, a state dict has one tensor under all names of a group, which whoever saves it
    then writes once; it is compared when a state dict is made.

    Args:
        model: Gets a hook only if a group is no longer one parameter.
        tied_params: What `find_tied_parameters` said before.
    """
    by_name = dict(model.named_parameters(remove_duplicate=False))
    cut = [group for group in tied_params if len({id(by_name[name]) for name in group}) > 1]
    if cut:
        add_hook_to_module(model, RetieHook(cut), append=True)


class RetieHook(ModelHook):
    """Names one tensor in state dicts where a model has equal copies of it, as long as the hook is on the model.

    Args:
        groups: The names of each tied weight.
    """

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self._groups = groups
        self._handle: Any = None

    def init_hook(self, module: nn.Module) -> nn.Module:
        untyped: Any = module
        self._handle = untyped.register_state_dict_post_hook(_Retie(self._groups))
        return module

    def detach_hook(self, module: nn.Module) -> nn.Module:
        self._handle.remove()
        return module


class _Retie:
    """What torch calls with each state dict; an object, as torch sets an attribute on it."""

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self.groups = groups

    def __call__(
        self, module: nn.Module, state: MutableMapping[str, Any], prefix: str, metadata: Mapping[str, Any]
    ) -> None:
        for group in self.groups:
            names = [prefix + name for name in group if prefix + name in state]
            for other in names[1:]:
                kept, copy = stored_values(state[names[0]]), stored_values(state[other])
                if copy.dtype == kept.dtype and torch.equal(kept, copy.to(kept.device)):
                    state[other] = state[names[0]]
