"""A flag that one rank raises and all ranks see."""

from __future__ import annotations

import torch

import accel_ops
from accel_state import PartialState


class Trigger:
    """A flag of this rank, combined with those of the others when it is checked.

    Args:
        processes: The processes of the run.
    """

    def __init__(self, processes: PartialState) -> None:
        self._processes = processes
        self._is_set = False

    def set(self) -> None:
        """Raise the flag on this rank."""
        self._is_set = True

    def check(self) -> bool:
        """Return whether any rank raised its flag, and lower all of them. Every rank must call it."""
        raised = torch.tensor(float(self._is_set), device=self._processes.device)
        self._is_set = False
        return bool(accel_ops.reduce(raised, "sum") >= 1)
