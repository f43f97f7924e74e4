"""A model whose forward is cut into stages: each rank runs its part of it, between two calls of modules.

Every rank runs the model's own Python code. Parameters of other stages are placeholders there, so that what happens
before the own stage computes shapes alone; where the own stage begins, the values that the previous rank computed take
the place of placeholders, and where the next stage begins, the run ends. The code of the model stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_backends.pipelining.placeholders import placeholder_of, put, standing_in
from accel_backends.pipelining.trace import Handover, Trace, trace_stages
from accel_backends.plans.model_names import nearest
from accel_ops.named_tensors import named_tensors
from accel_ops.nested.description import iterate_leaves
from accel_ops.nested.structures import recursively_apply
from accel_state.errors import ConfigError


class _StageEnd(BaseException):
    """Leaves the model's forward where the next stage begins; no `Exception`, which the model might catch."""

    def __init__(self, leaves: list[Any]) -> None:
        super().__init__()
        self.leaves = leaves


@dataclass(frozen=True, slots=True)
class StageOutput:
    """What a stage computed: tensors for the next one, or from the last one what the call returned."""

    tensors: tuple[torch.Tensor, ...] = ()
    result: Any = None


class StagedModel:
    """A model and the modules with which its stages begin.

    Args:
        model: The whole model; each rank keeps in it what `keep` is told to.
        starts: Names of the modules with which the stages begin, from the second stage on.
        device: Where this rank computes.

    Raises:
        ConfigError: If the model has no such module.
    """

    def __init__(self, model: nn.Module, starts: Sequence[str], *, device: torch.device) -> None:
        self.model = model
        self.num_stages = len(starts) + 1
        self.tensors = named_tensors(model)
        self._modules = [_module(model, name) for name in starts]
        self._starts = tuple(zip(starts, self._modules, strict=True))
        self._siblings = [_siblings(model, name) for name in starts]
        self._placeholders = {
            number: placeholder_of(found.tensor, device) for number, found in enumerate(self.tensors)
        }
        self._device = device

    def trace(self, call: Callable[[], Any]) -> Trace:
        """Return what the stages of ``call``, which calls the model, use and hand over. No communication."""
        with standing_in(self.tensors, self._placeholders):
            return trace_stages(call, self._starts, list(self._placeholders.values()))

    def keep(self, numbers: Iterable[int]) -> None:
        """Move these tensors to the device, and drop all others."""
        kept = set(numbers)
        for number, found in enumerate(self.tensors):
            if number in kept:
                found.tensor.data = found.tensor.data.to(self._device)
            else:
                put(found, self._placeholders[number])
                found.tensor = self._placeholders[number]

    def run(
        self, stage: int, call: Callable[[], Any], received: Sequence[torch.Tensor], trace: Trace
    ) -> StageOutput:
        """Run one stage of ``call``. No communication.

        Args:
            stage: Its number; this rank must hold its parameters.
            call: Calls the model.
            received: What the previous stage computed, as in the handover.
            trace: Of a call with inputs of the same shapes.
        """
        values: dict[int, torch.Tensor] = {}
        with ExitStack() as hooks:
            if stage > 0:
                enter = _enter(trace.handovers[stage - 1], received, values)
                module = self._modules[stage - 1]
                hooks.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                for sibling in self._siblings[stage - 1]:
                    hooks.callback(
                        sibling.register_forward_pre_hook(_filled(values), with_kwargs=True).remove
                    )
            if stage + 1 < self.num_stages:
                hooks.callback(
                    self._modules[stage].register_forward_pre_hook(_leave, with_kwargs=True).remove
                )
            try:
                result = call()
            except _StageEnd as end:
                return StageOutput(_chosen(end.leaves, trace.handovers[stage]))
        return StageOutput(result=_with_values(result, values))


def _enter(
    handover: Handover, received: Sequence[torch.Tensor], values: dict[int, torch.Tensor]
) -> Callable[..., Any]:
    """Return the hook that puts what was received into the arguments of a stage's first module."""
    replaced: list[torch.Tensor] = []  # alive, as long as an `id` stands for one

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not replaced:
            leaves = list(iterate_leaves((args, kwargs)))
            replaced.extend(_chosen(leaves, handover))
            values.update(zip(map(id, replaced), received, strict=True))
        return _with_values((args, kwargs), values)

    return enter


def _filled(values: Mapping[int, torch.Tensor]) -> Callable[..., Any]:
    """Return the hook of modules beside the first: later blocks are often given the same arguments."""

    def fill(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return _with_values((args, kwargs), values) if values else None

    return fill


def _leave(module: nn.Module, args: Any, kwargs: Any) -> None:
    raise _StageEnd(list(iterate_leaves((args, kwargs))))


def _chosen(leaves: Sequence[Any], handover: Handover) -> tuple[torch.Tensor, ...]:
    """Return the leaves of a call's arguments that one stage hands to the next."""
    if not all(place < len(leaves) and torch.is_tensor(leaves[place]) for place in handover.places):
        raise ConfigError(
            "The forward of the model takes another way with these inputs than with earlier ones of the same shapes, "
            "so what its stages would pass on differs. Let values of inputs not decide which modules are called."
        )
    return tuple(leaves[place] for place in handover.places)


def _with_values(data: Any, values: Mapping[int, torch.Tensor]) -> Any:
    return recursively_apply(lambda tensor: values.get(id(tensor), tensor), data)


def _module(model: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if not name or name not in modules:
        raise ConfigError(
            f"`{name}` in `split_points` is no module of `{type(model).__name__}`.{nearest(name, modules)}"
        )
    return modules[name]


def _siblings(model: nn.Module, name: str) -> list[nn.Module]:
    own = model.get_submodule(name)
    return [module for module in model.get_submodule(name.rpartition(".")[0]).children() if module is not own]
