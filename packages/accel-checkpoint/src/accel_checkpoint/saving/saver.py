"""Saves one after the other, in the foreground or behind the training loop."""

from __future__ import annotations

import secrets
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from accel_checkpoint.process_identity import stamp
from accel_checkpoint.ranks.agreement import Agreement, Merge, first
from accel_checkpoint.saving.handle import SaveHandle
from accel_checkpoint.saving.low_priority import LowPriorityThread
from accel_checkpoint.saving.pending_files import PendingFile
from accel_checkpoint.saving.progress import showing_progress
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_checkpoint.saving.stage import Stage
from accel_checkpoint.saving.transaction import Request, Transaction, writer_threads
from accel_state.errors import AccelError
from accel_state.topology import Topology


class Saver:
    """All saves of one run into any folders. Every rank must make the same calls.

    Args:
        topology: Who this process is.
        agreement: The way to the other ranks.
    """

    def __init__(self, *, topology: Topology, agreement: Agreement) -> None:
        self.topology = topology
        self.agreement = agreement
        self._token: str | None = None
        self._num_saves = 0
        self._num_rounds = 0
        self._under_way: SaveHandle | None = None
        self._buffers = HostBuffers()

    def stage(
        self, request: Request, *, blocking: bool = True, earlier: BaseException | None = None
    ) -> Stage:
        """Return what a checkpoint is put together in; it is saved when its `with` block ends.

        Args:
            request: What is to be saved.
            blocking: Write it before the block ends. Otherwise copy it, and write while the caller goes on.
            earlier: From `unreported_failure`: then this save fails on every rank, so that all learn of it together.
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
        return Stage(transaction, finish=self._finish if blocking else self._finish_behind)

    def agree(self, topic: str, report: str, merge: Merge) -> str:
        """Return the verdict of rank 0 on the reports of all ranks; for steps outside of a save."""
        self._num_rounds += 1
        return self.agreement.agree(f"{topic}-{self._num_rounds}", report, merge)

    def settle(self) -> None:
        """Wait for the save under way, if any.

        Raises:
            CheckpointError: If it failed and nobody has been told.
        """
        error = self.unreported_failure()
        if error is not None:
            raise error

    def unreported_failure(self) -> AccelError | None:
        """Wait for the save under way, if any; return why it failed, if it did and nobody here has been told."""
        if self._under_way is None:
            return None
        try:
            self._under_way.settle()
        except AccelError as error:
            return error
        finally:
            if self._under_way.done():
                self._under_way = None
        return None

    def _finish(self, transaction: Transaction) -> None:
        with self._showing_progress(transaction):
            transaction.finish()

    def _finish_behind(self, transaction: Transaction) -> SaveHandle:
        transaction.replace_files(self._copied)
        if transaction.must_raise_now:
            transaction.finish()
        writer, awaited = LowPriorityThread(), threading.Event()

        def hurry() -> None:
            writer.hurry()
            awaited.set()

        def write() -> Path:
            self._buffers.wait()
            with transaction, writer, self._showing_progress(transaction, awaited):
                target = transaction.finish(writer.run)
                return target

        self._under_way = SaveHandle(write, target=transaction.request.target, hurry=hurry)
        return self._under_way

    def _copied(self, files: list[PendingFile]) -> list[PendingFile]:
        self._buffers.begin()
        copies = [file.copied_to(self._buffers) for file in files]
        self._buffers.join_streams()
        return copies

    def _showing_progress(
        self, transaction: Transaction, awaited: threading.Event | None = None
    ) -> AbstractContextManager[None]:
        name = transaction.request.target.name
        is_shown = self.topology.rank == 0
        return showing_progress(transaction.staging.path, name=name, is_shown=is_shown, awaited=awaited)
