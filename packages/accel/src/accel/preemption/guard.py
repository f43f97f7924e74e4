"""The preemption state of a run; inactive until `handle_preemption` is called."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from accel_state.errors import StateError

if TYPE_CHECKING:  # imported lazily: most runs never handle preemption
    from accel.preemption.preemption import Preemption


class PreemptionGuard:
    """Passes training steps and loaders to the run's `Preemption`, once there is one.

    Args:
        loaders: The prepared loaders; more may be added later.
        end: Called by `Preemption.leave` to end the training before the process exits.
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
                "Preemption is being handled already. Call `close()` on the result of the first call."
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
        """Keep workers that `loader` starts from now on alive when a signal arrives."""
        if self._preemption is not None:
            self._preemption.keep_workers(loader)

    def close(self) -> None:
        """Restore the previous signal handlers."""
        if self._preemption is not None:
            self._preemption.close()
