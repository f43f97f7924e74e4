"""Calls of modules of earlier stages: what they returned without values is returned again, and nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_backends.pipelining.placeholders import is_placeholder
from accel_ops.nested.describe import iterate_leaves


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call of a module that a trace saw.

    Attributes:
        stage: The stage in which it began and ended.
        output: Placeholders, and None, in nested data.
    """

    stage: int
    output: Any


Calls = Mapping[nn.Module, Sequence[SeenCall | None]]
"""For each module its calls, in order; None for one that must be made again."""


class CallRecord:
    """The calls of modules in a trace.

    A call is made again if it returns anything but placeholders of its own, since later code may need what it is given.

    Args:
        modules: The modules; those that contain others of them are left out.
        needed_by_all: Tells which placeholders later stages have or compute, though an earlier one returns them.
        current_stage: Returns the stage that the trace is in.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        needed_by_all: Callable[[torch.Tensor], bool],
        current_stage: Callable[[], int],
    ) -> None:
        found = dict.fromkeys(modules)
        outer = {one for one in found if any(part in found for part in one.modules() if part is not one)}
        self._calls: dict[nn.Module, list[SeenCall | None]] = {one: [] for one in found if one not in outer}
        self._needed_by_all = needed_by_all
        self._current_stage = current_stage
        self._begun: list[tuple[int, frozenset[int]]] = []
        self._called_inside: set[nn.Module] = set()

    @property
    def calls(self) -> Calls:
        """What was seen; not of modules that another one called, which is not called where that one is skipped."""
        return {module: seen for module, seen in self._calls.items() if module not in self._called_inside}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take note of calls in the block."""
        hooks = [
            hook
            for module in self._calls
            for hook in (
                module.register_forward_pre_hook(self._begin, with_kwargs=True),
                module.register_forward_hook(self._end, always_call=True),
            )
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._begun:
            self._called_inside.add(module)
        self._begun.append((self._current_stage(), frozenset(map(id, iterate_leaves((args, kwargs))))))

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        stage, given = self._begun.pop()
        leaves = [leaf for leaf in iterate_leaves(output) if leaf is not None]
        is_own = all(
            is_placeholder(leaf) and id(leaf) not in given and not self._needed_by_all(leaf)
            for leaf in leaves
        )
        can_be_skipped = bool(leaves) and is_own and stage == self._current_stage()
        self._calls[module].append(SeenCall(stage, output) if can_be_skipped else None)


@contextmanager
def skipping(calls: Calls, *, before: int) -> Iterator[None]:
    """Let modules return what they returned in the trace in the block, in calls of stages before ``before``."""
    replaced = {
        module: vars(module).get("forward")
        for module, seen in calls.items()
        if any(call is not None and call.stage < before for call in seen)
    }
    try:
        for module in replaced:
            vars(module)["forward"] = _returning(module.forward, calls[module], before)
        yield
    finally:
        for module, forward in replaced.items():
            if forward is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = forward


def _returning(
    forward: Callable[..., Any], seen: Sequence[SeenCall | None], before: int
) -> Callable[..., Any]:
    remaining = iter(seen)

    def call(*args: Any, **kwargs: Any) -> Any:
        known = next(remaining, None)
        return forward(*args, **kwargs) if known is None or known.stage >= before else known.output

    return call
