"""A run of a model without values, to see what its stages use and what passes from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from accel_backends.pipelining.placeholders import is_placeholder, placeholder_of
from accel_backends.pipelining.skipping import CallRecord, Calls
from accel_backends.pipelining.substitution import filling, with_values
from accel_ops.nested.describe import iterate_leaves, iterate_tensors
from accel_state.errors import ConfigError

NUM_TRACES = 16
"""That are kept, of the latest shapes of inputs."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What one stage hands to the next, when it would call the module that the next one begins with.

    Attributes:
        places: Which of the arguments of that call, as leaves of nested data counted from 0. The other tensors among
            them do not depend on parameters: every rank that needs them computes them from the inputs of the model and
            from buffers.
        like: Placeholders of these tensors.
        is_used_elsewhere: Whether the forward computes with these tensors itself, and not only the modules beside the
            first one of the stage.
    """

    places: tuple[int, ...]
    like: tuple[torch.Tensor, ...]
    is_used_elsewhere: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """What a run without values showed.

    Attributes:
        handovers: One for each stage but the first: what it is handed.
        users: For each tensor of the model, by number, the stages that compute with it.
        calls: What the first modules of the stages, and those beside and around them, returned.
    """

    handovers: tuple[Handover, ...]
    users: tuple[frozenset[int], ...]
    calls: Calls


def trace_stages(
    call: Callable[[], Any],
    starts: Sequence[tuple[str, nn.Module]],
    siblings: Sequence[Sequence[nn.Module]],
    around: Sequence[nn.Module],
    tensors: Sequence[torch.Tensor],
) -> Trace:
    """Run ``call``, and return what it shows of its stages. No communication.

    Args:
        call: Calls the model, all parameters and buffers of which are placeholders.
        starts: The modules that the stages begin with, from the second stage on, and their names.
        siblings: The modules beside each of ``starts``.
        around: The modules beside those that contain ``starts``.
        tensors: These placeholders.

    Raises:
        ConfigError: If the forward cannot be cut there.
    """
    watch = _Watch(starts, tensors)
    hooks = [
        module.register_forward_pre_hook(watch.entering(number), with_kwargs=True)
        for number, (_, module) in enumerate(starts, start=1)
    ]
    for number, beside in reversed(list(enumerate(siblings))):  # what a later stage received comes first
        fill = filling(watch.values[number])
        hooks += [module.register_forward_pre_hook(fill, with_kwargs=True) for module in beside]
    modules = [*(module for _, module in starts), *(one for beside in siblings for one in beside), *around]
    record = CallRecord(modules, watch.needed_by_all, lambda: watch.stage)
    try:
        with torch.no_grad(), watch, record.watching():
            output = call()
    except DataDependentOutputException as error:
        raise ConfigError(
            "The forward of the model decides by computed values what to do next (`if`, `.item()`, `.tolist()` on a "
            "tensor that depends on parameters), so it cannot be cut into pipeline stages: other ranks do not have "
            "these values. Take the decision out of the forward."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    watch.check(output)
    handovers = [
        Handover(places, like, number in watch.used_elsewhere)
        for number, (places, like) in enumerate(watch.handed_over, start=1)
    ]
    return Trace(tuple(handovers), tuple(frozenset(users) for users in watch.users), record.calls)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation: which stage it belongs to, and whether that stage has the operands."""

    def __init__(self, starts: Sequence[tuple[str, nn.Module]], tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handed_over: list[tuple[tuple[int, ...], tuple[torch.Tensor, ...]]] = []
        self.values: list[dict[int, torch.Tensor]] = [{} for _ in starts]
        self.used_elsewhere: set[int] = set()
        self.users: list[set[int]] = [set() for _ in tensors]
        self._starts = starts
        self._numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        self.stage = 0
        self._stages: dict[int, int] = {}  # of computed placeholders
        self._alive: list[torch.Tensor] = list(tensors)  # as long as an `id` stands for a tensor
        self._buffers = {  # that a tensor is computed from, where it depends on no parameter
            id(tensor): frozenset({number})
            for number, tensor in enumerate(tensors)
            if not isinstance(tensor, nn.Parameter)
        }

    def entering(self, number: int) -> Callable[..., Any]:
        """Return the hook of the module that stage ``number`` begins with."""

        def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if number <= self.stage:  # called again
                return with_values((args, kwargs), self.values[number - 1])
            name = self._starts[number - 1][0]
            if number != self.stage + 1:
                raise ConfigError(
                    f"The split point `{name}` is called before `{self._starts[self.stage][0]}`. Give split points in "
                    "the order in which the forward calls them."
                )
            self._hand_over(list(iterate_leaves((args, kwargs))))
            return with_values((args, kwargs), self.values[number - 1])

        return enter

    def _hand_over(self, arguments: Sequence[Any]) -> None:
        found: dict[int, int] = {}
        for place, tensor in enumerate(arguments):
            if is_placeholder(tensor) and not self.needed_by_all(tensor):
                self._check(tensor, f"`{self._starts[self.stage][0]}` is called")
                found.setdefault(id(tensor), place)
        self.stage += 1
        places = tuple(found.values())
        like = tuple(arguments[place] for place in places)
        self.handed_over.append((places, like))
        for tensor in like:
            # As in a run of the stage, modules get other tensors in their place.
            received = self.values[self.stage - 1][id(tensor)] = placeholder_of(tensor, tensor.device)
            self._stages[id(tensor)] = self._stages[id(received)] = self.stage

    def needed_by_all(self, tensor: torch.Tensor) -> bool:
        """Whether every stage that needs a placeholder has or computes it: one of the model, or of its buffers."""
        return id(tensor) in self._numbers or id(tensor) in self._buffers

    def check(self, output: Any) -> None:
        """Refuse a forward that skipped a stage, or returns what an earlier stage than the last computed."""
        if self.stage < len(self._starts):
            raise ConfigError(
                f"The forward of the model never calls the split point `{self._starts[self.stage][0]}`. Name modules "
                "that it calls, such as the blocks that the model repeats."
            )
        for tensor in iterate_tensors(output):
            self._check(tensor, "the model returns its output")

    def _check(self, tensor: torch.Tensor, when: str) -> None:
        made_in = self._stages.get(id(tensor), self.stage)
        if made_in < self.stage and id(tensor) in self._buffers:
            for number in self._buffers[id(tensor)]:  # computed again from these
                self.users[number].add(self.stage)
        elif made_in < self.stage:
            raise ConfigError(
                f"The forward of the model computes a tensor in stage {made_in} that stage {self.stage} needs too, "
                f"when {when}; but what passes from one stage to the next are the arguments of "
                f"`{self._starts[self.stage - 1][0]}` alone. Name other modules in `split_points`, "
                "before which earlier stages compute nothing else that later ones need."
            )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note what it uses."""
        operands = list(filter(is_placeholder, iterate_tensors((args, kwargs))))
        for tensor in operands:
            number = self._numbers.get(id(tensor))
            if number is not None:
                self.users[number].add(self.stage)
            elif self.stage and id(tensor) in self.values[self.stage - 1]:
                self.used_elsewhere.add(self.stage)
            else:
                self._check(tensor, f"it computes `{func}`")
        result = func(*args, **(kwargs or {}))
        depends_on_buffers_alone = all(id(one) in self._buffers for one in operands)
        buffers = frozenset[int]().union(*(self._buffers.get(id(one), ()) for one in operands))
        for tensor in filter(is_placeholder, iterate_tensors(result)):
            if depends_on_buffers_alone:
                self._buffers[id(tensor)] = buffers
            else:  # and so does a buffer that was written to
                self._buffers.pop(id(tensor), None)
            if id(tensor) not in self._numbers:
                self._stages.setdefault(id(tensor), self.stage)
                self._alive.append(tensor)
        return result
