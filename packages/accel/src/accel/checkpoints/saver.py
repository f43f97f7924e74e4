"""Saves one after the other, in the foreground or behind the training loop."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from accel.checkpoints.agreement import Agreement
from accel.checkpoints.background import SaveHandle
from accel.checkpoints.giving_way import GivingWay
from accel.checkpoints.pieces import Piece
from accel.checkpoints.process_identity import stamp
from accel.checkpoints.progress import showing_progress
from accel.checkpoints.snapshot import HostBuffers
from accel.checkpoints.transaction import Request, Transaction, writer_threads
from accel_state.errors import AccelError
from accel_state.topology import Topology

Collect = Callable[[Transaction], list[Piece]]


class Saver:
    """All saves of one `Accelerator`. Every rank must make the same calls.

    Args:
        topology: Who this process is.
        agreement: The way to the other ranks.
    """

    def __init__(self, *, topology: Topology, agreement: Agreement) -> None:
        self.topology = topology
        self.agreement = agreement
        self._token: str | None = None
        self._num_saves = 0
        self._num_meetings = 0
        self._last_topic: str | None = None
        self._last: Transaction | None = None
        self._under_way: SaveHandle | None = None
        self._buffers = HostBuffers()

    def save(self, request: Request, collect: Collect, *, earlier: BaseException | None = None) -> Path:
        """Save, and return the folder when the checkpoint is there.

        Args:
            request: What is to be saved.
            collect: Says what this rank writes.
            earlier: From `untold`: then this save fails on every rank, so that all are told together.

        Raises:
            CheckpointError: On every rank, if any failed; or if the save before this one did.
        """
        with self._transaction(request, earlier) as transaction:
            transaction.begin()
            transaction.gather(collect)
            with self._showing_progress(transaction):
                target = transaction.finish()
        self._ended(transaction)
        return target

    def save_behind(
        self, request: Request, collect: Collect, *, earlier: BaseException | None = None
    ) -> SaveHandle:
        """Copy what is to be saved, and write it while the caller goes on.

        What fails, be it in copying, the handle tells: on every rank, so that none goes another way than the others.

        Args:
            request: What is to be saved.
            collect: Says what this rank writes.
            earlier: From `untold`: then this save fails on every rank, and on this one at once.

        Raises:
            CheckpointError: If the save before this one failed.
        """

        def copied(transaction: Transaction) -> list[Piece]:
            pieces = collect(transaction)
            self._buffers.begin()
            pieces = [piece.copied_to(self._buffers) for piece in pieces]
            self._buffers.join_streams()
            return pieces

        with self._transaction(request, earlier) as transaction:
            transaction.num_threads = 1
            transaction.begin()
            transaction.gather(copied)
            if transaction.has_to_be_told_now:
                transaction.finish()
        writer, awaited = GivingWay(), threading.Event()

        def hurry() -> None:
            writer.hurry()
            awaited.set()

        self._under_way = SaveHandle(
            lambda: self._finish_behind(transaction, writer, awaited), target=request.target, hurry=hurry
        )
        return self._under_way

    def settle(self) -> None:
        """Wait for the save under way, if any.

        Raises:
            CheckpointError: If it failed and nobody has been told.
        """
        error = self.untold()
        if error is not None:
            raise error

    def untold(self) -> AccelError | None:
        """Wait for the save under way, if any, and return why it failed, if it did and nobody here has been told."""
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

    def meet(self, topic: str, note: str) -> list[str]:
        """Return the notes of all ranks; for steps outside of a save."""
        self._num_meetings += 1
        topic = f"{topic}-{self._num_meetings}"
        notes = self.agreement.exchange(topic, note)
        # Who came to this meeting has read all notes of the last one.
        if self._last_topic is not None:
            self.agreement.forget(self._last_topic)
        self._last_topic = topic
        return notes

    def _transaction(self, request: Request, earlier: BaseException | None) -> Transaction:
        if self._token is None:
            [self._token, *_] = self.meet("token", f"{secrets.token_hex(4)}-{stamp()}")
        self._num_saves += 1
        request = replace(request, token=f"{self._token}-{self._num_saves}")
        return Transaction(
            request, self.topology, self.agreement, num_threads=writer_threads(), earlier=earlier
        )

    def _showing_progress(
        self, transaction: Transaction, awaited: threading.Event | None = None
    ) -> AbstractContextManager[None]:
        name = transaction.request.target.name
        is_shown = self.topology.rank == 0
        return showing_progress(transaction.staging.path, name=name, is_shown=is_shown, awaited=awaited)

    def _finish_behind(self, transaction: Transaction, writer: GivingWay, awaited: threading.Event) -> Path:
        self._buffers.wait()
        with transaction, writer, self._showing_progress(transaction, awaited):
            target = transaction.finish(writer.run)
        self._ended(transaction)
        return target

    def _ended(self, transaction: Transaction) -> None:
        if self._last is not None:
            self._last.forget()
        self._last = transaction
