"""All saves of one run, one at a time, blocking or in the background."""

from __future__ import annotations

import secrets
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from accel_checkpoint.process_identity import stamp
from accel_checkpoint.ranks.agreement import Agreement, Merge, first
from accel_checkpoint.saving.handle import SaveHandle
from accel_checkpoint.saving.low_priority import LowPriorityThread
from accel_checkpoint.saving.progress import showing_progress, size_of_folder
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_checkpoint.saving.stage import Stage
from accel_checkpoint.saving.transaction import Request, Transaction, writer_threads
from accel_state.errors import AccelError
from accel_state.topology import Topology


class Saver:
    """Runs the saves of one training run, to any folders. Every rank must make the same calls.

    Args:
        topology: This process's rank and node.
        agreement: Exchanges reports with the other ranks.
    """

    def __init__(self, *, topology: Topology, agreement: Agreement) -> None:
        self.topology = topology
        self.agreement = agreement
        self._token: str | None = None
        self._num_saves = 0
        self._num_rounds = 0
        self._running: SaveHandle | None = None
        self._buffers = HostBuffers()

    def stage(
        self, request: Request, *, blocking: bool = True, earlier: BaseException | None = None
    ) -> Stage:
        """Return the stage of a new checkpoint, which is saved when its `with` block ends.

        Args:
            request: What to save.
            blocking: Write the files before the block ends. Otherwise take a snapshot and write in the background.
            earlier: Result of `unreported_failure`. If set, this save fails on every rank with that error.
        """
        if self._token is None:
            self._token = self.agree("token", f"{secrets.token_hex(4)}-{stamp()}", first)
        self._num_saves += 1
        request = replace(request, token=f"{self._token}-{self._num_saves}")
        transaction = Transaction(
            request,
            self.topology,
            self.agreement,
            num_threads=writer_threads() if blocking else 1,
            earlier=earlier,
        )
        return Stage(transaction, finish=self._finish if blocking else self._finish_in_background)

    def agree(self, topic: str, report: str, merge: Merge) -> str:
        """Return rank 0's verdict on the reports of all ranks; for steps outside a save."""
        self._num_rounds += 1
        return self.agreement.agree(f"{topic}-{self._num_rounds}", report, merge)

    def settle(self) -> None:
        """Wait for the running save, if any.

        Raises:
            CheckpointError: If it failed and the error has not been raised yet.
        """
        error = self.unreported_failure()
        if error is not None:
            raise error

    def unreported_failure(self) -> AccelError | None:
        """Wait for the running save, if any; return its error if it failed and the error has not been raised yet."""
        if self._running is None:
            return None
        try:
            self._running.settle()
        except AccelError as error:
            return error
        finally:
            if self._running.done():
                self._running = None
        return None

    def _finish(self, transaction: Transaction) -> None:
        with self._showing_progress(transaction):
            transaction.finish()

    def _finish_in_background(self, transaction: Transaction) -> SaveHandle:
        self._buffers.begin()
        transaction.take_snapshot(self._buffers)
        with transaction.recording_failure():
            self._buffers.join_streams()
        if transaction.must_raise_now:
            transaction.finish()
        writer, awaited = LowPriorityThread(), threading.Event()

        def hurry() -> None:
            writer.hurry()
            awaited.set()

        def write() -> Path:
            with transaction, writer, self._showing_progress(transaction, awaited):
                with transaction.recording_failure():
                    self._buffers.wait()
                target = transaction.finish(writer.run)
                return target

        self._running = SaveHandle(write, target=transaction.request.target, hurry=hurry)
        return self._running

    def _showing_progress(
        self, transaction: Transaction, awaited: threading.Event | None = None
    ) -> AbstractContextManager[None]:
        return showing_progress(
            partial(size_of_folder, transaction.staging.path),
            label=f"Saving {transaction.request.target.name}",
            is_shown=self.topology.rank == 0,
            awaited=awaited,
        )
