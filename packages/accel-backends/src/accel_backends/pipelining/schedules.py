"""In which order a stage goes forward and backward through the micro-batches of a batch.

GPipe: Huang et al., https://arxiv.org/abs/1811.06965. 1F1B: Narayanan et al., https://arxiv.org/abs/1806.03377.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of a stage: forward or backward with one micro-batch."""

    is_forward: bool
    micro_batch: int


def gpipe(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """Return all forward passes, then all backward passes: activations of all micro-batches are kept."""
    return [Action(is_forward, number) for is_forward in (True, False) for number in range(num_micro_batches)]


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """Return forward passes until the first can go back, then one of each in turn."""
    num_ahead = min(num_stages - stage - 1, num_micro_batches)
    actions = [Action(True, number) for number in range(num_ahead)]
    for number in range(num_ahead, num_micro_batches):
        actions += [Action(True, number), Action(False, number - num_ahead)]
    return actions + [
        Action(False, number) for number in range(num_micro_batches - num_ahead, num_micro_batches)
    ]


SCHEDULES: Mapping[str, Callable[[int, int, int], list[Action]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
}
"""By name; each is told the stage, the number of stages and the number of micro-batches."""
