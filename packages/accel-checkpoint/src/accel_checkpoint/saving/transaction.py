"""One save: staging, the write on every rank, and the commit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from accel_checkpoint.digests import digest_of
from accel_checkpoint.files import files_below, folders_of, force_to_disk, make_durably, regular_file
from accel_checkpoint.manifest import FileEntry, Manifest, first_nonfinite, write_manifest
from accel_checkpoint.ranks.agreement import Agreement, first
from accel_checkpoint.ranks.reports import RankReport, Verdict, reason_of, verdict_on
from accel_checkpoint.saving.collective_files import CollectiveFile
from accel_checkpoint.saving.pending_files import NOTE_SUFFIX, MergedFile, PendingFile, write_files
from accel_checkpoint.saving.progress import Progress
from accel_checkpoint.saving.retention import remove_old, remove_stale_folders
from accel_checkpoint.saving.sink import FileSink
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_checkpoint.saving.staging import Staging, check_target
from accel_state.errors import CheckpointError
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user


@dataclass(frozen=True)
class Request:
    """What to save, and where.

    Attributes:
        target: Final path of the checkpoint.
        token: Identifies this save, the same on every rank; empty until the ranks have agreed on it.
        keep: How many numbered checkpoints to keep; None keeps all.
        step: Training steps so far.
        iteration: Number of the checkpoint, if it has one.
        mesh: Layout of the ranks; see `Manifest`.
    """

    target: Path
    token: str = ""
    keep: int | None = None
    step: int = 0
    iteration: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """What the manifest records about the content; see `Manifest`."""

    strategy: str = ""
    model_format: str = ""
    objects: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass
class Transaction:
    """One rank's part in a save. Call `begin` and `gather` on the training thread, `finish` on any thread.

    Attributes:
        request: What to save.
        topology: This process's rank and node.
        agreement: Exchanges reports with the other ranks.
        num_threads: How many files to write at a time.
        files: The files that this rank writes.
        collective_files: The files that all ranks write together, in the same order on each.
        merged_files: What rank 0 writes after all ranks have written their files.
        foreign_files: Names of files that this rank has put into the staging folder by other means.
    """

    request: Request
    topology: Topology
    agreement: Agreement
    num_threads: int = 2
    place: int = 0
    is_owner: bool = False
    description: Description = field(default_factory=Description)
    files: list[PendingFile] = field(default_factory=list)
    collective_files: list[CollectiveFile] = field(default_factory=list)
    merged_files: list[MergedFile] = field(default_factory=list)
    foreign_files: list[str] = field(default_factory=list)
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.staging = Staging(self.request.target, token=self.request.token)
        self._is_rejected = False
        self._is_saved: bool | None = False
        self._listed: list[FileEntry] = []
        self._is_collective = False

    def begin(self) -> None:
        """Create the staging folder; with several nodes, find out which of them share a file system."""
        topology = self.topology
        self.is_owner = topology.rank == 0
        if self.failure is None and self.is_owner:
            with self.recording_failure():
                check_target(self.request.target)
                self.staging.make()
        if topology.num_nodes > 1:
            with self.recording_failure():
                if topology.local_rank == 0:
                    # NFS may cache for 30 s that this folder is missing; creating it clears that entry.
                    make_durably(self.request.target.parent)
            self.agreement.agree(self._topic("begun"), "", first)
            if not self.staging.path.exists():
                self.place, self.is_owner = topology.node_rank, topology.local_rank == 0
            # No rank creates the folder on this node before every rank here has checked for it.
            self.agreement.agree(self._topic("placed"), "", first)
        if self.failure is None and topology.rank != 0:
            with self.recording_failure():
                check_target(self.request.target)
                self.staging.make()

    def gather(self, collect: Callable[[], list[PendingFile]], *, is_collective: bool = False) -> None:
        """Add the files that ``collect`` returns. If it raises, `finish` reports the error on every rank.

        Args:
            collect: Returns the files of this rank.
            is_collective: Whether it may add collective files; the same on every rank.
        """
        self._is_collective = self._is_collective or is_collective
        with self.recording_failure():
            if self.failure is None or self.topology.world_size > 1:
                self.files += collect()  # even after a failure: the other ranks may wait in its collectives

    def take_snapshot(self, buffers: HostBuffers) -> None:
        """Let `finish` write the files as they are now. If this fails, `finish` reports the error on every rank.

        Raises:
            CheckpointError: If a rank has failed before; only where files are collective.
        """
        self._check_all_collected()
        with self.recording_failure():
            if self.failure is None:
                self.files = [file.snapshot(buffers) for file in self.files]
        for one in self.collective_files:
            with self.recording_failure():
                copied = one.snapshot(buffers)
                self.files += [] if copied is None else [copied]
        self.collective_files = []

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record the first error of the block, which `finish` reports on every rank, instead of raising it here."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 (raised in `_agree`)
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Record why this rank cannot save; `finish` reports it on every rank."""
        if self.failure is None:
            self.failure = error

    @property
    def is_interrupted(self) -> bool:
        """Whether to raise the failure on this rank at once, as after Ctrl-C."""
        return self.failure is not None and not isinstance(self.failure, Exception)

    def finish(self, progress: Progress | None = None) -> Path:
        """Write this rank's files, wait for the other ranks, and commit the checkpoint.

        Args:
            progress: Is advanced by the bytes that this rank writes.

        Raises:
            CheckpointError: On every rank, if any rank failed. The checkpoint is then removed entirely.
        """
        written: list[FileEntry] = []
        self._check_all_collected()
        for one in self.collective_files:
            with self.recording_failure():
                sink = one.write(self.staging.path, progress=progress)
                written += [] if sink is None or one.file is None else [self._entry(one.file.name, sink)]
        self.collective_files = []
        with self.recording_failure():
            if self.failure is None:
                written += self._write(progress)
        self.files = []
        self._commit(self._agree("written", written))
        return self.request.target

    def _check_all_collected(self) -> None:
        """Before the first collective file: raise on every rank if one has failed, since it would not take part."""
        if self._is_collective:
            self._is_collective = False
            self._agree("collected")

    def _entry(self, name: str, sink: FileSink) -> FileEntry:
        return FileEntry(
            name,
            sink.num_bytes,
            sink.digest,
            rank=self.topology.rank,
            place=self.place,
            nonfinite=sink.nonfinite,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the staging folder after an error, unless other ranks may already count the checkpoint as saved."""
        if error is None:
            return
        if self._is_rejected:
            self.staging.roll_back()
        if self.is_owner:
            self.staging.discard()
        self.staging.release()

    def _write(self, progress: Progress | None) -> list[FileEntry]:
        folder, rank = self.staging.path, self.topology.rank
        files = write_files(
            self.files,
            folder,
            rank=rank,
            place=self.place,
            num_threads=self.num_threads,
            progress=progress,
        )
        for inner in folders_of(file.name for file in files):
            force_to_disk(folder / inner)
        files += self._entries(self.foreign_files)
        force_to_disk(folder)
        return files

    def _commit(self, verdict: Verdict) -> None:
        is_main = self.topology.rank == 0
        has_parts = verdict.has_parts
        # The other nodes commit first: once rank 0's manifest is visible, every file that it lists exists.
        if has_parts:
            others: list[FileEntry] = []
            with self.recording_failure():
                if self.is_owner and not is_main:
                    others = self._commit_part(
                        [entry for entry in verdict.files if entry.place == self.place]
                    )
            self._agree("parts", others)
        with self.recording_failure():
            if is_main:
                self._write_merged()
                self._commit_part(self._listed)
                self._is_saved = True
                self._warn_of_nonfinite()
        if is_main and self.staging.is_committed:
            self._is_saved = self._is_saved or None
        if has_parts:
            # Keep the parts that were replaced until rank 0 has committed.
            self._agree("published")
        with self.recording_failure():
            if self.is_owner and self.failure is None:
                self._clean_up(nonfinite=first_nonfinite(self._listed or verdict.files))
        self.staging.release()
        self._agree("committed")

    def _write_merged(self) -> None:
        """On rank 0: write the files that need to know about those of all ranks."""
        notes: dict[str, str] = {}
        for entry in self._listed if self.merged_files else ():
            with suppress(FileNotFoundError):
                note = self.staging.path / f"{entry.name}{NOTE_SUFFIX}"
                notes[entry.name] = note.read_text(encoding="utf-8")
                note.unlink()
        for file in self.merged_files if self.failure is None else ():
            with FileSink(self.staging.path / file.name) as sink:
                file.write(sink, notes)
            self._listed.append(FileEntry(file.name, sink.num_bytes, sink.digest))
            force_to_disk((self.staging.path / file.name).parent)

    def _commit_part(self, listed: list[FileEntry]) -> list[FileEntry]:
        """Commit the part on this file system, and return those of its files that no rank has reported."""
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
        self.staging.commit()
        return others

    def _other_files(self, known: set[str]) -> list[FileEntry]:
        """Return the files that hooks and engines wrote without reporting them."""
        return self._entries([name for name in files_below(self.staging.path) if name not in known])

    def _entries(self, names: Sequence[str]) -> list[FileEntry]:
        """Return the manifest entries of files written by other means, after forcing them to disk."""
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
        """Report this rank's outcome, and raise if any rank failed."""
        error = None if self.failure is None else reason_of(self.failure)
        if (
            error is not None and "inline_container" in error
        ):  # torch's writer, which does not report the cause
            free = shutil.disk_usage(folder := self.staging.path.parent).free
            error += f" (torch could not write a file; {free} bytes are free on the disk of `{folder}`)"
        own = RankReport(
            str(self.request.target),
            self.place,
            self.topology.node_rank,
            files,
            error,
            self._is_saved,
        )
        try:
            verdict = Verdict.decode(
                self.agreement.agree(self._topic(stage), own.encode(), self._merge, is_begun=True)
            )
            self._is_rejected = verdict.is_saved is False and verdict.error is not None
            if verdict.error is not None:
                raise CheckpointError(verdict.error)
        except CheckpointError as error_of_all:
            if self.failure is not None and self.is_interrupted:
                raise self.failure from None
            raise error_of_all from self.failure
        return verdict

    def _merge(self, texts: Sequence[str]) -> str:
        """On rank 0: collect the file entries of all ranks, and return the verdict."""
        reports = [RankReport.decode(text) for text in texts]
        self._listed += [entry for report in reports for entry in report.files]
        return verdict_on(reports, target=self.request.target).encode()

    def _warn_of_nonfinite(self) -> None:
        if nonfinite := first_nonfinite(self._listed):
            warn_user(
                f"Values that are not finite are saved, first in {nonfinite}. The last finite checkpoint is kept. "
                "Resume from that one.",
                main_process_only=False,
            )

    def _clean_up(self, *, nonfinite: str) -> None:
        target = self.request.target
        try:
            self.staging.finalize(keep_finite=bool(nonfinite))
            if self.request.keep is not None:
                remove_old(target.parent, keep=self.request.keep, newest=target)
            remove_stale_folders(self.staging.path.parent)
        except OSError as error:
            warn_user(
                f"`{target}` is saved, but older checkpoints were not removed: {error}. Remove them by hand.",
                main_process_only=False,
            )

    def _topic(self, stage: str) -> str:
        return f"{self.request.token}/{stage}"
