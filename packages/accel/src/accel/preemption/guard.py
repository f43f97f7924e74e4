"""What a run does about preemption: nothing until `handle_preemption` is called."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from accel_state.errors import StateError

if TYPE_CHECKING:  # a run that handles no signals does without their modules
    from accel.preemption.preemption import Preemption


class PreemptionGuard:
    """Hands training steps and loaders to the `Preemption` of the run, once there is one.

    Args:
        loaders: The prepared loaders; there may be more later.
        end: Ends the training, before `Preemption.leave` ends the process.
    """

    def __init__(self, loaders: Iterable[DataLoader[Any]], *, end: Callable[[], None]) -> None:
        self._loaders = loaders
        self._end = end
        self._preemption: Preemption | None = None

    @property
    def is_enabled(self) -> bool:
        """Whether `handle` was called."""
        return self._preemption is not None

    @property
    def should_stop(self) -> bool:
        """Whether all ranks have agreed to stop."""
        return self._preemption is not None and self._preemption.should_stop

    def handle(
        self, signals: Sequence[int | signal.Signals] | None, *, grace_period_s: float | None, exit_code: int
    ) -> Preemption:
        """Install the signal handlers; see `Accelerator.handle_preemption`.

        Raises:
            StateError: If signals are being handled already.
        """
        from accel.preemption.preemption import SIGNALS, Preemption

        if self._preemption is not None and self._preemption.is_open:
            raise StateError(
                "Preemption is being handled already. Call `close()` of what the first call gave."
            )
        self._preemption = Preemption(
            signals=SIGNALS if signals is None else tuple(signals),
            grace_period_s=grace_period_s,
            exit_code=exit_code,
            end=self._end,
        )
        for loader in self._loaders:
            self._preemption.keep_workers(loader)
        return self._preemption

    def advance(self) -> None:
        """Count a training step, after which all ranks may agree to stop."""
        if self._preemption is not None:
            self._preemption.advance()

    def keep_workers(self, loader: DataLoader[Any]) -> None:
        """Let workers that `loader` starts from now on outlive the signals."""
        if self._preemption is not None:
            self._preemption.keep_workers(loader)

    def close(self) -> None:
        """Put the earlier signal handlers back."""
        if self._preemption is not None:
            self._preemption.close()
