"""A model whose forward is cut into stages: each rank runs its part of it, between two calls of modules.

Every rank runs the model's own Python code. Parameters of other stages are placeholders there, so that what happens
before the own stage computes shapes alone; where the own stage begins, the values that the previous rank computed take
the place of placeholders, and where the next stage begins, the run ends. The code of the model stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_backends.pipelining.bare_forward import AddedHooks
from accel_backends.pipelining.placeholders import held, is_placeholder, placeholder_of, put, standing_in
from accel_backends.pipelining.skipping import Calls, skipping
from accel_backends.pipelining.substitution import Everywhere, filling, modules_around, siblings, with_values
from accel_backends.pipelining.trace import Handover, Trace, trace_stages
from accel_backends.plans.model_names import nearest
from accel_backends.sharding.values import replace_tensor
from accel_ops.named_tensors import NamedTensor, named_tensors
from accel_ops.nested.describe import iterate_leaves, iterate_tensors
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
        num_ranks: Ranks that have the stages, each every ``num_ranks``th; None: one for each stage.

    Raises:
        ConfigError: If the model has no such module.
    """

    def __init__(
        self,
        model: nn.Module,
        starts: Sequence[str],
        *,
        device: torch.device,
        num_ranks: int | None = None,
    ) -> None:
        self.model = model
        self.num_stages = len(starts) + 1
        self.num_ranks = num_ranks or self.num_stages
        self.tensors = named_tensors(model)
        self._modules = [_module(model, name) for name in starts]
        self._starts = tuple(zip(starts, self._modules, strict=True))
        self._siblings = [siblings(model, name) for name in starts]
        self._around = [module for name in starts for module in modules_around(model, name)]
        self._numbers = {id(found): number for number, found in enumerate(self.tensors)}
        self._placeholders = {
            number: placeholder_of(found.tensor, device) for number, found in enumerate(self.tensors)
        }
        self._device = device
        self.users: tuple[frozenset[int], ...] = ()
        """For each tensor, the stages that compute with it; empty until the first trace that `decide` was given."""
        self.holders: tuple[frozenset[int], ...] = ()
        """The same as places of ranks in the pipeline."""
        self._others: dict[int, dict[int, torch.Tensor]] = {}
        self._elsewhere: set[int] = set()
        self._idle: dict[int, frozenset[nn.Module]] = {}
        self.hooks = AddedHooks(model)
        """Those that sharding adds, without which the model is traced."""

    def trace(self, call: Callable[[], Any]) -> Trace:
        """Return what the stages of ``call``, which calls the model, use and hand over. No communication."""
        with (
            torch.compiler.set_stance("force_eager"),
            self.hooks.left_out(),
            standing_in(self.tensors, self._placeholders),
        ):
            tensors = list(self._placeholders.values())
            return trace_stages(call, self._starts, self._siblings, self._around, tensors)

    def decide(self, place: int, trace: Trace) -> None:
        """Let the first trace say which stages use which tensors; ``place`` is that of this rank in the pipeline.

        Raises:
            ConfigError: If this trace uses what an earlier one did not.
        """
        if not self.users:
            self.users = trace.users
            self.holders = tuple(
                frozenset(stage % self.num_ranks for stage in users) for users in trace.users
            )
            self._elsewhere = {n for n, places in enumerate(self.holders) if places and place not in places}
            self._others = {
                stage: {
                    n: self._placeholders[n]
                    for n, users in enumerate(self.users)
                    if users and stage not in users
                }
                for stage in range(place, self.num_stages, self.num_ranks)
            }
        elif any(users - before for users, before in zip(trace.users, self.users, strict=True) if before):
            raise ConfigError(
                "With this batch a stage of the pipeline computes with parameters that it did not need for the first "
                "one, and that its rank has dropped. Let all batches take the same path through the model."
            )

    def users_of(self, found: NamedTensor) -> frozenset[int]:
        """Return the stages that compute with one of the `tensors`; none if all keep it and nobody does."""
        return self.users[self._numbers[id(found)]]

    def is_held(self, found: NamedTensor) -> bool:
        """Tell whether this rank has the values of one of the `tensors`."""
        return self._numbers[id(found)] not in self._elsewhere

    def drop(self, found: NamedTensor) -> None:
        """Free the memory of a tensor of other stages; it keeps its shape, and stays the same object if it can."""
        hollow = torch.zeros((), dtype=found.tensor.dtype, device=self._device).expand(found.tensor.shape)
        if found.tensor.is_meta:
            replace_tensor(found, hollow)
        else:
            found.tensor.data = hollow

    def refresh(self) -> None:
        """Take note of the tensors that the modules hold now, after some of them were replaced."""
        for found in self.tensors:
            found.tensor = held(found)

    def without_other_ranks(self) -> AbstractContextManager[None]:
        """Return a block in which the model has placeholders for the tensors of stages of other ranks."""
        return standing_in(self.tensors, {number: self._placeholders[number] for number in self._elsewhere})

    @contextmanager
    def without_other_stages(self, stage: int) -> Iterator[None]:
        """Let the model have placeholders for the tensors of all other stages in the block, so that nothing runs twice.

        Hooks that sharding added to their modules are left out, which would gather what is not needed.
        """
        if self.num_stages == self.num_ranks:  # this rank has no other stage
            yield
            return
        if stage not in self._idle:
            self._idle[stage] = self._idle_in(stage)
        with standing_in(self.tensors, self._others[stage]), self.hooks.left_out(self._idle[stage]):
            yield

    def _idle_in(self, stage: int) -> frozenset[nn.Module]:
        """Return the modules of which all tensors belong to other stages."""
        direct: dict[nn.Module, set[int]] = defaultdict(set)
        for found, users in zip(self.tensors, self.users, strict=True):
            for module, _ in found.places:
                direct[module] |= users
        found_in = {
            module: set[int]().union(*(direct[part] for part in module.modules() if part in direct))
            for module in self.model.modules()
        }
        return frozenset(module for module, stages in found_in.items() if stages and stage not in stages)

    def _without_hooks(self, calls: Calls, stage: int) -> Calls:
        """Leave out modules whose hooks of sharding run in a stage, and would see what has no values."""
        idle = self._idle.get(stage, ())
        return {
            module: seen for module, seen in calls.items() if module in idle or not self.hooks.has_any(module)
        }

    def trained_in(self, stage: int) -> list[nn.Parameter]:
        """Return the trained parameters that a stage of this rank computes with, as its modules hold them now."""
        tensors = [held(one) for one, users in zip(self.tensors, self.users, strict=True) if stage in users]
        return [one for one in tensors if isinstance(one, nn.Parameter) and one.requires_grad]

    def is_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Tell whether a parameter or buffer of the model is used by the stages of other ranks alone."""
        return any(self.tensors[number].tensor is tensor for number in self._elsewhere)

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
                handover = trace.handovers[stage - 1]
                enter = _enter(handover, received, values)
                module = self._modules[stage - 1]
                # Before the hooks of sharding, which look at the arguments.
                hooks.callback(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True).remove)
                for beside in self._siblings[stage - 1]:
                    hook = beside.register_forward_pre_hook(filling(values), prepend=True, with_kwargs=True)
                    hooks.callback(hook.remove)
                if handover.is_used_elsewhere:
                    hooks.enter_context(Everywhere(values))
                hooks.enter_context(skipping(self._without_hooks(trace.calls, stage), before=stage))
            if stage + 1 < self.num_stages:
                hooks.callback(
                    self._modules[stage].register_forward_pre_hook(_leave, with_kwargs=True).remove
                )
            try:
                result = call()
            except _StageEnd as end:
                tensors = with_values(_chosen(end.leaves, trace.handovers[stage]), values)
                _check_values(tensors)
                return StageOutput(tensors)
        result = with_values(result, values)
        _check_values(iterate_tensors(result))
        return StageOutput(result=result)


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
        return with_values((args, kwargs), values)

    return enter


def _check_values(tensors: Iterable[torch.Tensor]) -> None:
    if any(map(is_placeholder, tensors)):
        raise ConfigError(
            "With these inputs a stage of the pipeline needs what an earlier stage computes and does not hand over, "
            "which it did not with earlier inputs of the same shapes. Do not let values of inputs decide which modules "
            "are called."
        )


def _leave(module: nn.Module, args: Any, kwargs: Any) -> None:
    raise _StageEnd(list(iterate_leaves((args, kwargs))))


def _chosen(leaves: Sequence[Any], handover: Handover) -> tuple[torch.Tensor, ...]:
    """Return the leaves of a call's arguments that one stage hands to the next."""
    if not all(place < len(leaves) and torch.is_tensor(leaves[place]) for place in handover.places):
        raise ConfigError(
            "The forward of the model takes another path with these inputs than with earlier ones of the same shapes, "
            "so what its stages would pass on differs. Do not let values of inputs decide which modules are called."
        )
    return tuple(leaves[place] for place in handover.places)


def _module(model: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if not name or name not in modules:
        raise ConfigError(
            f"`{name}` in `split_points` is no module of `{type(model).__name__}`.{nearest(name, modules)}"
        )
    return modules[name]
