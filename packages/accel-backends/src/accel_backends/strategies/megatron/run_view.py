"""What train steps and data sets see of the run, in place of the `Accelerator` above them."""

from __future__ import annotations

from typing import Any

from accel_state.accelerator_state import AcceleratorState


class RunView:
    """Has ``state`` as an `Accelerator` has it, and the attributes of that: ``device``, ``num_processes`` and so on."""

    @property
    def state(self) -> AcceleratorState:
        """The state of the run."""
        return AcceleratorState()

    def __getattr__(self, name: str) -> Any:
        return getattr(AcceleratorState(), name)
