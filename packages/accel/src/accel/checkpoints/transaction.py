"""One save, from the first byte to the moment in which all ranks know that it is there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from accel.checkpoints.agreement import Agreement
from accel.checkpoints.digests import digest_of
from accel.checkpoints.files import files_below, folders_of, force_to_disk, regular_file
from accel.checkpoints.giving_way import Work, at_once
from accel.checkpoints.manifest import FileEntry, Manifest, write_manifest
from accel.checkpoints.notes import Note, check_all_well, reason_of
from accel.checkpoints.pieces import Piece, write_pieces
from accel.checkpoints.retention import remove_left_over, remove_old
from accel.checkpoints.staging import Staging, check_target
from accel_state.errors import CheckpointError
from accel_state.topology import Topology


@dataclass(frozen=True)
class Request:
    """What is to be saved.

    Attributes:
        target: Where the checkpoint will be.
        token: Tells this save from all others; the same on every rank.
        keep: How many numbered checkpoints stay, None: all.
        step: Training steps so far.
        iteration: Number of the checkpoint, if it has one.
        mesh: How the ranks are arranged; see `Manifest`.
    """

    target: Path
    token: str
    keep: int | None = None
    step: int = 0
    iteration: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Transaction:
    """A save on one rank. `begin` and `gather` belong to the training thread, `finish` to any.

    Attributes:
        request: What is to be saved.
        topology: Who this process is.
        agreement: The way to the other ranks.
        num_threads: Files that are written at a time.
        earlier: Why the save before this one failed, where nobody has been told yet: then this one fails too.
    """

    request: Request
    topology: Topology
    agreement: Agreement
    num_threads: int = 2
    place: int = 0
    is_owner: bool = False
    objects: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    failure: BaseException | None = None
    earlier: BaseException | None = None

    def __post_init__(self) -> None:
        self.staging = Staging(self.request.target, token=self.request.token)
        self.failure = self.earlier
        self._is_refused = False
        self._is_saved = False

    def begin(self) -> None:
        """Make the hidden folder; on several machines, find out which of them share a file system."""
        topology = self.topology
        self.is_owner = topology.rank == 0
        if self.failure is None and self.is_owner:
            with self._noting_failure():
                check_target(self.request.target)
                self.staging.make()
        if topology.num_nodes > 1:
            self.agreement.exchange(self._topic("begun"), "")
            if not self.staging.path.exists():
                self.place, self.is_owner = topology.node_rank, topology.local_rank == 0
            # Nobody makes it on this machine before all here have looked.
            self.agreement.exchange(self._topic("placed"), "")
        if self.failure is None and topology.rank != 0:
            with self._noting_failure():
                check_target(self.request.target)
                self.staging.make()

    def gather(self, collect: Callable[[Transaction], list[Piece]]) -> None:
        """Let ``collect`` say what this rank writes; if it raises, every rank will know at the end."""
        with self._noting_failure():
            if self.failure is None or self.topology.world_size > 1:
                self.pieces = collect(self)  # it may communicate, for which the other ranks would wait

    @property
    def has_to_be_told_now(self) -> bool:
        """Whether it has failed such that this rank's caller is to hear of it at once: by Ctrl-C, or before."""
        return self.failure is not None and (
            self.failure is self.earlier or not isinstance(self.failure, Exception)
        )

    def finish(self, run: Callable[[Work], None] = at_once) -> Path:
        """Write, agree with the other ranks, and make the checkpoint visible.

        Args:
            run: Does what takes long: digests bytes and writes them.

        Raises:
            CheckpointError: On every rank, if it failed on any; nothing is left of the checkpoint then.
        """
        files: list[FileEntry] = []
        with self._noting_failure():
            if self.failure is None:
                files = self._write(run)
        self.pieces = []
        self._commit(self._exchange("written", files))
        return self.request.target

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing hidden behind; what other ranks may have taken for saved stays."""
        if error is None:
            return
        if self._is_refused:
            self.staging.withdraw()
        if self.is_owner:
            self.staging.discard()
        self.staging.release()

    def _write(self, run: Callable[[Work], None]) -> list[FileEntry]:
        folder, rank = self.staging.path, self.topology.rank
        files = write_pieces(
            self.pieces,
            folder,
            rank=rank,
            place=self.place,
            num_threads=self.num_threads,
            run=run,
        )
        force_to_disk(folder)
        return files

    def _commit(self, notes: Sequence[Note]) -> None:
        listed = [entry for note in notes for entry in note.files]
        is_main = self.topology.rank == 0
        has_parts = any(note.place != 0 for note in notes)
        # The other machines' parts first: when the main process's manifest is seen, all that it lists is there.
        if has_parts:
            others: list[FileEntry] = []
            with self._noting_failure():
                if self.is_owner and not is_main:
                    others = self._publish([entry for entry in listed if entry.place == self.place])
            notes = self._exchange("parts", others)
            listed += [entry for note in notes for entry in note.files]
        with self._noting_failure():
            if is_main:
                self._publish(listed)
                self._is_saved = True
        if has_parts:
            # What the parts have replaced is wanted until the main process's is there.
            self._exchange("published")
        with self._noting_failure():
            if self.is_owner and self.failure is None:
                self._tidy_up()
        self.staging.release()
        self._exchange("committed")

    def _publish(self, listed: list[FileEntry]) -> list[FileEntry]:
        """Make the part on this file system visible, and return those of its files that nobody had listed."""
        others = self._other_files({entry.name for entry in listed if entry.place == self.place})
        manifest = Manifest(
            files=[*listed, *others],
            token=self.request.token,
            world_size=self.topology.world_size,
            mesh=self.request.mesh,
            step=self.request.step,
            iteration=self.request.iteration,
            place=self.place,
            objects=self.objects,
        )
        write_manifest(self.staging.path, manifest)
        self.staging.publish()
        return others

    def _other_files(self, known: set[str]) -> list[FileEntry]:
        """Return what hooks and engines put into the folder by themselves, forced to disk."""
        folder, entries = self.staging.path, []
        for name in files_below(folder):
            if name not in known:
                path = regular_file(folder, name)
                force_to_disk(path)
                size = path.stat().st_size
                entries.append(FileEntry(name, size, digest_of(path), self.topology.rank, self.place))
        for inner in folders_of(entry.name for entry in entries):
            force_to_disk(folder / inner)
        return entries

    def _exchange(self, stage: str, files: Sequence[FileEntry] = ()) -> list[Note]:
        """Tell the others how it went here, and raise if it failed anywhere."""
        error = None if self.failure is None else reason_of(self.failure)
        own = Note(
            str(self.request.target), self.place, self.topology.node_rank, files, error, self._is_saved
        )
        try:
            notes = [Note.decode(text) for text in self.agreement.exchange(self._topic(stage), own.encode())]
            self._is_refused = not notes[0].is_saved and any(note.error is not None for note in notes)
            check_all_well(notes, target=self.request.target)
        except CheckpointError as error_of_all:
            if self.failure is not None and self.has_to_be_told_now:
                raise self.failure from None  # as it is
            raise error_of_all from self.failure
        return notes

    def _tidy_up(self) -> None:
        target = self.request.target
        try:
            self.staging.settle()
            if self.request.keep is not None:
                remove_old(target.parent, keep=self.request.keep, newest=target)
            remove_left_over(self.staging.path.parent)
        except OSError as error:
            warnings.warn(f"`{target}` is saved, but older ones were not tidied up: {error}", stacklevel=2)

    def forget(self) -> None:
        """Drop this rank's notes on the save, once a later one is done."""
        for stage in ("begun", "placed", "written", "parts", "published", "committed"):
            self.agreement.forget(self._topic(stage))

    def _topic(self, stage: str) -> str:
        return f"{self.request.token}/{stage}"

    def _noting_failure(self) -> _NotingFailure:
        return _NotingFailure(self)


class _NotingFailure:
    """Keep what is raised, for the other ranks to hear of; once something has failed, skip nothing but the rest."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None:
            return False
        if self._transaction.failure is None:
            self._transaction.failure = error
        return True


def writer_threads() -> int:
    """Return how many files are worth writing at a time on this machine."""
    return max(1, min(4, os.cpu_count() or 1))
