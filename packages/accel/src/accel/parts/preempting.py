"""Stop early and in good order; `accel.preemption` does the work."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accel.parts.tracking import Tracking
from accel.prepared_loaders import PreparedLoaders
from accel_state.errors import StateError

if TYPE_CHECKING:
    from accel.preemption import Preemption


class Preempting(Tracking):
    """What a run does when its machine is about to be taken away."""

    _preemption: Preemption | None
    _dataloaders: PreparedLoaders

    def end_training(self) -> None:
        """Write out and close all trackers, then end the process group. Every rank must call it.

        Raises:
            TrackerError: If a tracker failed to log something; all are closed and the group is ended first.
        """
        if self._preemption is not None:
            self._preemption.close()
        super().end_training()

    def _advance_preemption(self) -> None:
        if self._preemption is not None:
            self._preemption.advance()

    @property
    def should_stop(self) -> bool:
        """Whether the run has been asked to stop, as all ranks have agreed.

        It changes in `backward` only, in one that synchronises gradients, and in the same one on every rank.
        So it may be read anywhere, by any rank, as often as one likes. False without `handle_preemption`.
        """
        return self._preemption is not None and self._preemption.should_stop

    def handle_preemption(
        self,
        signals: Sequence[int | signal.Signals] | None = None,
        grace_period_s: float | None = None,
        exit_code: int = 75,
    ) -> Preemption:
        """Turn signals on any rank into `should_stop` on all, for the loop to save and leave.

        Call it on every rank, in the main thread. As a context manager it leaves the process when the block
        is over, if all have agreed to stop: trackers are closed, and the exit code says that the job is to be
        queued again. Otherwise it puts the earlier handlers back.

            with accelerator.handle_preemption():
                for batch in loader:
                    ...
                    if accelerator.should_stop:
                        accelerator.save_state("preempted")
                        break

        A signal is noticed within a second; the ranks then agree on a step that none has passed yet. Steps
        without a signal cost well under a microsecond. Loops without `backward` call `advance()` of the
        result once in each turn instead. Signals that reach the forked workers of prepared loaders too, as those
        of schedulers do, leave them be: call this before the loop that starts them.

        Args:
            signals: Which signals; SIGTERM and SIGUSR1 where left out.
            grace_period_s: Time from the signal until a rank that has not left is ended by force; None:
                never.
            exit_code: With which the process leaves; 75 is `EX_TEMPFAIL`, "try again".

        Raises:
            ConfigError: If an argument makes no sense.
            StateError: If signals are being handled already, or outside of the main thread.
        """
        from accel.preemption import SIGNALS, Preemption

        if self._preemption is not None and self._preemption.is_open:
            raise StateError(
                "Preemption is being handled already. Call `close()` of what the first call gave."
            )
        self._preemption = Preemption(
            signals=SIGNALS if signals is None else tuple(signals),
            grace_period_s=grace_period_s,
            exit_code=exit_code,
            end=self.end_training,
        )
        for loader in self._dataloaders:
            self._preemption.keep_workers(loader)
        return self._preemption
