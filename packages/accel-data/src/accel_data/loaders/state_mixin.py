"""What the gradient state knows about the loader that is being read."""

from __future__ import annotations

from accel_data.step import StepShape
from accel_state.gradient_state import GradientState, current_gradient


class DataLoaderStateMixin:
    """A loader that `GradientState` knows between `begin` and `end`.

    Attributes:
        end_of_dataloader: Whether the current batch is this rank's last.
        ends_some_rank: Whether it is the last of any rank; None where that cannot be known.
        remainder: Samples in the last global batch if it is not full; 0 if it is full; -1 while that is
            unknown.
        will_pad: Whether the last step is known to be padded.
        gradient_state: The state of accumulation, which knows the loader that is being read.
        step_shape: Rows of every rank in the current step, and how many are no padding; None if unknown.
    """

    gradient_state: GradientState = current_gradient()
    end_of_dataloader: bool = False
    ends_some_rank: bool | None = False
    remainder: int = -1
    step_shape: StepShape | None = None
    will_pad: bool = False

    @property
    def rows_of_full_batch(self) -> int | None:
        """Rows of this rank's batch in a full step; None if they vary or are unknown."""
        return None

    @property
    def counts_batches(self) -> bool:
        """Whether the shape counts whole batches instead of rows."""
        return False

    def reset(self) -> None:
        """Forget what is known about the pass."""
        self.end_of_dataloader = False
        self.ends_some_rank = False
        self.remainder = -1
        self.step_shape = None
        self.will_pad = False

    def begin(self) -> None:
        """Start a pass: this loader becomes the active one."""
        self.reset()
        self.gradient_state._add_dataloader(self)

    def end(self) -> None:
        """End a pass, complete or not: the loader around this one becomes active again."""
        self.gradient_state._remove_dataloader(self)
