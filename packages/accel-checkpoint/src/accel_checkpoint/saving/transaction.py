"""One save, from the first byte to the moment in which all ranks know that it is there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from accel_checkpoint.digests import digest_of
from accel_checkpoint.files import files_below, folders_of, force_to_disk, make_durably, regular_file
from accel_checkpoint.manifest import FileEntry, Manifest, write_manifest
from accel_checkpoint.ranks.agreement import Agreement, first
from accel_checkpoint.ranks.reports import RankReport, Verdict, reason_of, verdict_on
from accel_checkpoint.saving.low_priority import Work, at_once
from accel_checkpoint.saving.pending_files import PendingFile, write_files
from accel_checkpoint.saving.retention import remove_left_over, remove_old
from accel_checkpoint.saving.staging import Staging, check_target
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


@dataclass(frozen=True)
class Description:
    """What the manifest says of the content; see `Manifest`."""

    strategy: str = ""
    model_format: str = ""
    objects: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass
class Transaction:
    """A save on one rank. `begin` and `gather` belong to the training thread, `finish` to any.

    Attributes:
        request: What is to be saved.
        topology: Who this process is.
        agreement: The way to the other ranks.
        num_threads: Files that are written at a time.
        files: What this rank writes.
        foreign_files: Names of what this rank has put into the folder by other means.
        earlier: Why the save before this one failed, where nobody has been told yet: then this one fails too.
    """

    request: Request
    topology: Topology
    agreement: Agreement
    num_threads: int = 2
    place: int = 0
    is_owner: bool = False
    description: Description = field(default_factory=Description)
    files: list[PendingFile] = field(default_factory=list)
    foreign_files: list[str] = field(default_factory=list)
    failure: BaseException | None = None
    earlier: BaseException | None = None

    def __post_init__(self) -> None:
        self.staging = Staging(self.request.target, token=self.request.token)
        self.failure = self.earlier
        self._is_refused = False
        self._is_saved = False
        self._listed: list[FileEntry] = []

    def begin(self) -> None:
        """Make the hidden folder; on several machines, find out which of them share a file system."""
        topology = self.topology
        self.is_owner = topology.rank == 0
        if self.failure is None and self.is_owner:
            with self._noting_failure():
                check_target(self.request.target)
                self.staging.make()
        if topology.num_nodes > 1:
            with self._noting_failure():
                if topology.local_rank == 0:
                    # NFS may remember for half a minute that this folder was missing; making it ends that.
                    make_durably(self.request.target.parent)
            self.agreement.agree(self._topic("begun"), "", first)
            if not self.staging.path.exists():
                self.place, self.is_owner = topology.node_rank, topology.local_rank == 0
            # Nobody makes it on this machine before all here have looked.
            self.agreement.agree(self._topic("placed"), "", first)
        if self.failure is None and topology.rank != 0:
            with self._noting_failure():
                check_target(self.request.target)
                self.staging.make()

    def gather(self, collect: Callable[[], list[PendingFile]]) -> None:
        """Let ``collect`` say what this rank writes; if it raises, every rank will know at the end."""
        with self._noting_failure():
            if self.failure is None or self.topology.world_size > 1:
                self.files += collect()  # it may communicate, for which the other ranks would wait

    def replace_files(self, replace: Callable[[list[PendingFile]], list[PendingFile]]) -> None:
        """Let ``replace`` say what is written instead; if it raises, every rank will know at the end."""
        with self._noting_failure():
            if self.failure is None:
                self.files = replace(self.files)

    def fail(self, error: BaseException) -> None:
        """Note why this rank cannot save, for all ranks to learn at the end."""
        if self.failure is None:
            self.failure = error

    @property
    def must_raise_now(self) -> bool:
        """Whether this rank's caller must hear of the failure at once: after Ctrl-C, or if an earlier save failed."""
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
        written: list[FileEntry] = []
        with self._noting_failure():
            if self.failure is None:
                written = self._write(run)
        self.files = []
        self._commit(self._agree("written", written))
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
        files = write_files(
            self.files, folder, rank=rank, place=self.place, num_threads=self.num_threads, run=run
        )
        files += self._entries(self.foreign_files)
        force_to_disk(folder)
        return files

    def _commit(self, verdict: Verdict) -> None:
        is_main = self.topology.rank == 0
        has_parts = verdict.has_parts
        # The other machines' parts first: when the main process's manifest is seen, all that it lists is there.
        if has_parts:
            others: list[FileEntry] = []
            with self._noting_failure():
                if self.is_owner and not is_main:
                    others = self._publish([entry for entry in verdict.files if entry.place == self.place])
            self._agree("parts", others)
        with self._noting_failure():
            if is_main:
                self._publish(self._listed)
                self._is_saved = True
        if has_parts:
            # What the parts have replaced is wanted until the main process's is there.
            self._agree("published")
        with self._noting_failure():
            if self.is_owner and self.failure is None:
                self._tidy_up()
        self.staging.release()
        self._agree("committed")

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
            strategy=self.description.strategy,
            model_format=self.description.model_format,
            objects=self.description.objects,
        )
        write_manifest(self.staging.path, manifest)
        self.staging.publish()
        return others

    def _other_files(self, known: set[str]) -> list[FileEntry]:
        """Return what hooks and engines put into the folder without saying so."""
        return self._entries([name for name in files_below(self.staging.path) if name not in known])

    def _entries(self, names: Sequence[str]) -> list[FileEntry]:
        """Force files to disk that were written by other means, and return what they are."""
        folder, entries = self.staging.path, []
        for name in names:
            path = regular_file(folder, name)
            force_to_disk(path)
            size = path.stat().st_size
            entries.append(FileEntry(name, size, digest_of(path), self.topology.rank, self.place))
        for inner in folders_of(names):
            force_to_disk(folder / inner)
        return entries

    def _agree(self, stage: str, files: Sequence[FileEntry] = ()) -> Verdict:
        """Report how it went here, and raise if it failed on any rank."""
        error = None if self.failure is None else reason_of(self.failure)
        own = RankReport(
            str(self.request.target), self.place, self.topology.node_rank, files, error, self._is_saved
        )
        try:
            verdict = Verdict.decode(self.agreement.agree(self._topic(stage), own.encode(), self._merge))
            self._is_refused = not verdict.is_saved and verdict.error is not None
            if verdict.error is not None:
                raise CheckpointError(verdict.error)
        except CheckpointError as error_of_all:
            if self.failure is not None and self.must_raise_now:
                raise self.failure from None  # as it is
            raise error_of_all from self.failure
        return verdict

    def _merge(self, texts: Sequence[str]) -> str:
        """Keep the main process's list of files, and return the verdict."""
        reports = [RankReport.decode(text) for text in texts]
        self._listed += [entry for report in reports for entry in report.files]
        return verdict_on(reports, target=self.request.target).encode()

    def _tidy_up(self) -> None:
        target = self.request.target
        try:
            self.staging.settle()
            if self.request.keep is not None:
                remove_old(target.parent, keep=self.request.keep, newest=target)
            remove_left_over(self.staging.path.parent)
        except OSError as error:
            warnings.warn(f"`{target}` is saved, but older ones were not tidied up: {error}", stacklevel=2)

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
