"""When units of a sharded model are gathered: ahead of their turn, and for calls that do not begin with its forward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

from accel_backends.fsdp.groups import ROOT, ShardGroup
from accel_state.errors import ConfigError
from accel_state.runtime import current_runtime

_END = "the end of the forward pass"


def gather_for_entries(model: nn.Module, methods: Iterable[str]) -> None:
    """Gather parameters of the root for each module that has some, and for ``methods``, as the root's forward does.

    Units gather theirs by torch's own hooks. Within the forward of the root, or of a module that has gathered,
    nothing is done.

    Raises:
        ConfigError: If the model has no such method, or the module it belongs to is no unit.
    """
    state: Any = model._get_fsdp_state()  # type: ignore[operator]
    group = state._fsdp_param_group
    infos = [one._module_info for one in (() if group is None else group.fsdp_params)]
    entry = _Entry(state)
    for module in {module for info in infos for module in (info.module, *info.shared_modules)} - {model}:
        module.register_forward_pre_hook(entry.before, prepend=True, with_kwargs=True)
        # Also after an exception, or the next pass would end within this module.
        module.register_forward_hook(entry.after, always_call=True)
    for name in methods:
        path, _, method = name.rpartition(".")
        owner: Any = dict(model.named_modules()).get(path)
        is_unit = isinstance(owner, FSDPModule)
        if not is_unit or not callable(getattr(owner, method, None)):
            raise ConfigError(
                f"`forward_methods` has `{name}`, which is no method of the model or of one of its units. "
                "Name methods as `encode`, or as `blocks.0.encode` those of a unit."
            )
        register_fsdp_forward_method(owner, method)


class _Entry:
    """Runs the hooks of the root around the outermost module that is called without the root.

    Args:
        state: torch's, of the root. torch 2.13 runs its hooks for methods of units (`register_fsdp_forward_method`)
            and has no public way to run them for other modules.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._entered: nn.Module | None = None

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._state._training_state is TrainingState.FORWARD:
            return None
        self._entered = module
        return self._state._pre_forward(module, args, kwargs)

    def after(self, module: nn.Module, args: Any, outputs: Any) -> Any:
        if module is not self._entered:
            return None
        self._entered = None
        return self._state._post_forward(module, args, outputs)


def gather_once(model: nn.Module, groups: Sequence[ShardGroup]) -> None:
    """Gather each group once, so that any part of ``model`` may run first, also under `torch.inference_mode`.

    torch takes the first unit that runs for the root, and makes the memory of gathered parameters when it first gathers
    them: under inference mode it could never be written to outside of it ("Inplace update to inference tensor").
    """
    state: Any = model._get_fsdp_state()  # type: ignore[operator]
    state._lazy_init()  # which has no public name in torch 2.13
    for group in groups:
        unit: Any = model.get_submodule(group.modules[0])
        unit.unshard()
        unit.reshard()


def set_prefetching(model: nn.Module, groups: Sequence[ShardGroup], *, forward: int, backward: int) -> None:
    """Make each unit all-gather the units that run after it while it computes; no communication.

    Units are taken to run in the order in which the model lists its modules, the tail last, and backwards in the
    backward pass. Memory for as many more units is needed at the same time.

    Args:
        model: After `shard_model`.
        groups: The groups it was sharded in.
        forward: How many units ahead in the forward pass; 0 leaves it to torch, which begins one when it needs it.
        backward: The same in the backward pass, where torch gathers one unit ahead.
    """
    if not forward and not backward:
        return
    place = {name: index for index, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    ordered = sorted(
        (group for group in groups if ROOT not in group.modules),
        key=lambda group: (group.is_tail, place[group.modules[0]]),
    )
    modules = [model.get_submodule(group.modules[0]) for group in ordered]
    units: list[FSDPModule] = [unit for unit in modules if isinstance(unit, FSDPModule)]
    for index, unit in enumerate(units):
        if forward:
            unit.set_modules_to_forward_prefetch(units[index + 1 : index + 1 + forward])
        if backward:
            unit.set_modules_to_backward_prefetch(units[max(index - backward, 0) : index][::-1])


def check_unit_order(model: nn.Module, units: Mapping[str, nn.Module], *, kind: str) -> None:
    """In debug mode make each unit, before it is gathered, compare with the other ranks that they run it too.

    Otherwise torch waits for ever, or takes the parameters of one unit for those of another of the same size.

    Args:
        model: The model, which every rank calls.
        units: Its units by name; the root may be one.
        kind: What the user's model is called in messages.
    """
    if not current_runtime().debug:
        return
    for name, module in units.items():
        called = f"{name} of {kind}" if name else kind
        module.register_forward_pre_hook(partial(_compare, called), prepend=True)
    model.register_forward_hook(partial(_compare, f"{_END} of {kind}"))


def _compare(unit: str, *_: Any) -> None:
    current_runtime().await_arrival(f"forward of {unit}")
