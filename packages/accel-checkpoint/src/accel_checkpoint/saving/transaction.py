"""One save on every rank: the stage makes a temporary folder, fills it, and renames it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from accel_checkpoint.files import (
    FileEntry,
    digest_of,
    files_below,
    folders_of,
    force_to_disk,
    make_durably,
    regular_file,
)
from accel_checkpoint.manifest import Manifest, first_nonfinite, write_manifest
from accel_checkpoint.random_states import captured
from accel_checkpoint.ranks.agreement import Agreement, first, reason_of
from accel_checkpoint.saving.handle import SaveHandle
from accel_checkpoint.saving.pending_files import (
    NOTE_SUFFIX,
    CollectiveFile,
    Files,
    MergedFile,
    PendingFile,
    pending_file,
    write_files,
)
from accel_checkpoint.saving.retention import Retention, remove_old
from accel_checkpoint.saving.sink import Advance, FileSink, progress_bar
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_checkpoint.saving.staging import Staging, check_target, remove_stale_folders
from accel_state.errors import CheckpointError
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user

_saved: set[str] = set()
"""Tokens of the saves of this process."""


@dataclass(frozen=True)
class Request:
    """What to save, and where.

    Attributes:
        target: Final path of the checkpoint.
        token: Identifies this save, the same on every rank; empty until the ranks have agreed on it.
        retention: Which numbered checkpoints to keep; None keeps all.
        step: Training steps so far.
        iteration: Number of the checkpoint, if it has one.
        mesh: Layout of the ranks; see `Manifest`.
        metrics: Values by name, recorded in the manifest; those of rank 0 count.
        strategy: Training strategy; see `Manifest`.
        model_format: File format of the models; see `Manifest`.
        objects: Class names of the saved objects, by kind.
    """

    target: Path
    token: str = ""
    retention: Retention | None = None
    step: int = 0
    iteration: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    strategy: str = ""
    model_format: str = ""
    objects: Mapping[str, Sequence[str]] = field(default_factory=dict)


def is_saved_here(token: str) -> bool:
    """Whether this process has taken part in the save with this token."""
    return token in _saved


class Stage:
    """Collects the files of a new checkpoint; created by `CheckpointFolder.save`.

    The checkpoint is saved when the `with` block ends, on all ranks or on none. An error in the block of one rank
    raises `CheckpointError` on the others: it is kept until the next round of reports, in which the first failure on
    any rank fails all.

    Args:
        request: What to save.
        topology: This process's rank and node.
        agreement: Exchanges reports with the other ranks.
        buffers: Memory for a snapshot that is written in the background; None writes the files before the block ends.
    """

    def __init__(
        self,
        request: Request,
        *,
        topology: Topology,
        agreement: Agreement,
        buffers: HostBuffers | None = None,
    ) -> None:
        self._request, self._topology, self._agreement, self._buffers = request, topology, agreement, buffers
        self._staging = Staging(request.target, token=request.token)
        self.place = 0
        """The file system that this rank writes to: 0 for rank 0's, otherwise the rank of the node."""
        self.is_owner = topology.rank == 0
        """Whether this rank commits the files on its file system."""
        self._files: list[PendingFile] = []
        self._collective: list[CollectiveFile] = []
        self._is_collective = False
        self._merged: list[MergedFile] = []
        self._foreign: list[str] = []
        self._failure: BaseException | None = None
        self._is_rejected = False  # whether the last round failed while the checkpoint was not saved
        self._entries: list[FileEntry] = []  # on rank 0, the files that all ranks have reported
        self.handle: SaveHandle | None = None
        """Handle of a save in the background, set when the block ends."""

    @property
    def path(self) -> Path:
        """The temporary folder. Files written there by other means become part of the checkpoint too; see `wrote`."""
        return self._staging.path

    @property
    def target(self) -> Path:
        """Final path of the checkpoint."""
        return self._request.target

    def write(self, name: str, content: Any, *, rank: int | None = 0) -> None:
        """Add a file to the checkpoint.

        The file is written when the block ends. Do not change ``content`` before that.

        Args:
            name: File name. Its suffix selects the format: `.safetensors` for a dict of tensors, `.json`, or `.bin`,
                `.pt`, `.pth` and `.pkl` for `torch.save` (tensors, numbers, strings and containers of these).
            content: Content of the file.
            rank: The rank that writes content that all ranks share. Pass None for content of this rank alone, under a
                name that no other rank uses.

        Raises:
            ConfigError: If the name has another suffix.
            CheckpointError: If the content is not plain data, since it could not be loaded safely.
        """
        if rank is None or rank == self._topology.rank:
            self._files.append(pending_file(name, content))

    def write_random_states(self) -> None:
        """Add the states of this rank's random generators (Python, NumPy, torch, the device) to the checkpoint."""
        name, content = captured(rank=self._topology.rank)
        self.write(name, content, rank=None)

    def wrote(self, *names: str) -> None:
        """Report files that this rank has written to `path` by other means, such as an engine's own save.

        This rank reads them again to compute their digests. Rank 0 does so, one by one, for files that no rank reports.

        Args:
            *names: Relative to `path`, separated by `/`.
        """
        self._foreign.extend(names)

    def gather(self, collect: Callable[[Stage], Files], *, is_collective: bool = False) -> None:
        """Add the files that ``collect`` returns. If it raises, every rank raises when the block ends.

        Args:
            collect: Returns the files of this rank; called at once.
            is_collective: Whether they may include collective ones; the same on every rank.
        """
        self._is_collective = self._is_collective or is_collective
        with self._recording_failure():
            # Even after a failure: the other ranks may wait in its collectives.
            if self._failure is None or self._topology.world_size > 1:
                files = collect(self)
                self._files += files.own
                self._collective += files.collective
                self._merged += files.merged

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._fail(error)
            # This rank raises the error of its own block.
            with suppress(CheckpointError), self._undone_after_error():
                self._complete()
            return
        with self._undone_after_error():
            if self._buffers is not None:
                self.handle = self._in_background(self._buffers)
                return
            is_main = self._topology.rank == 0
            with progress_bar(f"Saving {self.target.name}", is_shown=is_main) as advance:
                self._complete(num_threads=os.cpu_count() or 1, advance=advance)

    def _in_background(self, buffers: HostBuffers) -> SaveHandle:
        """Take a snapshot of the content, and start to write it."""
        self._take_snapshot(buffers)

        def finish() -> Path:
            with self._undone_after_error():
                with self._recording_failure():
                    buffers.wait()
                self._complete()
            return self.target

        if self._is_interrupted:
            finish()  # which raises the interruption here
        return SaveHandle(finish, target=self.target)

    def _begin(self) -> None:
        """Create the staging folder; with several nodes, find out which of them share a file system.

        A rank that cannot create it reports that in the next round.
        """
        topology = self._topology
        with self._undone_after_error():
            if topology.rank == 0:
                self._make_folder()
            if topology.num_nodes > 1:
                with self._recording_failure():
                    if topology.local_rank == 0:
                        # NFS may cache for 30 s that this folder is missing; creating it clears that entry.
                        make_durably(self.target.parent)
                # Each machine keeps its best parts by rank 0's metrics.
                metrics = json.dumps(dict(self._request.metrics))
                metrics = self._agreement.agree(self._topic("begun"), metrics, first)
                self._request = replace(self._request, metrics=json.loads(metrics))
                if not self.path.exists():
                    self.place, self.is_owner = topology.node_rank, topology.local_rank == 0
                # No rank creates the folder on this node before every rank here has checked for it.
                self._agreement.agree(self._topic("placed"), "", first)
            if topology.rank != 0:
                self._make_folder()

    def _make_folder(self) -> None:
        with self._recording_failure():
            if self._failure is None:
                check_target(self.target)
                self._staging.make()

    def _complete(self, *, num_threads: int = 1, advance: Advance | None = None) -> None:
        """Write this rank's files, and commit the checkpoint when every rank has written its own.

        Args:
            num_threads: How many files to write at a time.
            advance: Called with the number of bytes that this rank writes, again and again.

        Raises:
            CheckpointError: On every rank, if any rank failed. The checkpoint is then removed entirely.
        """
        written = self._write(num_threads, advance)
        self._files, self._collective = [], []  # the handle of a save may live longer than the snapshot
        is_main = self._topology.rank == 0
        parts = self._agree("written", written)
        # The other nodes commit first: once rank 0's manifest is visible, every file that it lists exists.
        if parts is not None:
            others: list[FileEntry] = []
            with self._recording_failure():
                if self.is_owner and not is_main:
                    others = self._commit_part(parts)
            self._agree("parts", others)
        is_saved: bool | None = False
        with self._recording_failure():
            if is_main:
                self._entries += self._write_merged()
                self._commit_part(self._entries)
                is_saved = True
        if is_main and not is_saved and self._staging.is_committed:
            is_saved = None
        if parts is not None:
            # Keep the parts that were replaced until rank 0 has committed.
            self._agree("published", is_saved=is_saved)
        with self._recording_failure():
            if self.is_owner and self._failure is None:
                self._clean_up(first_nonfinite(self._entries or parts or ()))
        self._staging.release()
        self._agree("committed", is_saved=is_saved)
        _saved.add(self._request.token)

    def _take_snapshot(self, buffers: HostBuffers) -> None:
        """Replace the content by a copy of it as it is now; a failure is reported in the next round."""
        self._check_all_collected()
        files: list[PendingFile] = []
        buffers.begin()
        with self._recording_failure():
            if self._failure is None:
                files += [file.snapshot(buffers) for file in self._files]
        for one in self._collective:
            with self._recording_failure():
                copied = one.snapshot(buffers)
                files += [] if copied is None else [copied]
        with self._recording_failure():
            buffers.join_streams()
        self._files, self._collective, self._is_collective = files, [], False

    def _write(self, num_threads: int, advance: Advance | None) -> list[FileEntry]:
        """Write this rank's files, force them to disk and return their entries."""
        folder, written = self.path, list[tuple[PendingFile, FileSink]]()
        foreign: list[FileEntry] = []
        self._check_all_collected()
        for one in self._collective:
            with self._recording_failure():
                sink = one.write(folder, advance=advance)
                if one.file is not None and sink is not None:
                    written.append((one.file, sink))
        with self._recording_failure():
            if self._failure is None:
                sinks = write_files(self._files, folder, num_threads=num_threads, advance=advance)
                written += zip(self._files, sinks, strict=True)
                for inner in folders_of(file.name for file in self._files):
                    force_to_disk(folder / inner)
                foreign += self._foreign_entries(self._foreign)
                force_to_disk(folder)
        rank = self._topology.rank
        return [*(sink.entry(file.name, rank=rank, place=self.place) for file, sink in written), *foreign]

    def _check_all_collected(self) -> None:
        """Before the first collective file: raise on every rank if one has failed, since it would not take part."""
        if self._is_collective:
            self._agree("collected")

    def _write_merged(self) -> list[FileEntry]:
        """On rank 0: write the files that need to know about those of all ranks, and return their entries."""
        notes, written = dict[str, str](), list[FileEntry]()
        for entry in self._entries if self._merged else ():
            with suppress(FileNotFoundError):
                note = self.path / f"{entry.name}{NOTE_SUFFIX}"
                notes[entry.name] = note.read_text(encoding="utf-8")
                note.unlink()
        for file in self._merged if self._failure is None else ():
            with FileSink(self.path / file.name) as sink:
                file.write(sink, notes)
            written.append(sink.entry(file.name))
            force_to_disk((self.path / file.name).parent)
        return written

    def _commit_part(self, listed: Sequence[FileEntry]) -> list[FileEntry]:
        """Commit the part on this file system, and return those of its files that no rank has reported."""
        if self._topology.rank != 0:
            listed = [entry for entry in listed if entry.place == self.place]
        known = {entry.name for entry in listed if entry.place == self.place}
        # Hooks and engines may write files without reporting them.
        others = self._foreign_entries([name for name in files_below(self.path) if name not in known])
        request = self._request
        manifest = Manifest(
            files=[*listed, *others],
            token=request.token,
            world_size=self._topology.world_size,
            mesh=request.mesh,
            step=request.step,
            iteration=request.iteration,
            place=self.place,
            strategy=request.strategy,
            model_format=request.model_format,
            objects=request.objects,
            metrics=request.metrics,
        )
        write_manifest(self.path, manifest)
        self._staging.commit()
        return others

    def _foreign_entries(self, names: Sequence[str]) -> list[FileEntry]:
        """Return the manifest entries of files written by other means, after forcing them to disk."""
        entries = []
        for name in names:
            path = regular_file(self.path, name)
            force_to_disk(path)
            entry = FileEntry(name, path.stat().st_size, digest_of(path), self._topology.rank, self.place)
            entries.append(entry)
        for inner in folders_of(names):
            force_to_disk(self.path / inner)
        return entries

    def _clean_up(self, nonfinite: str) -> None:
        """Remove what the new checkpoint replaces, but not the last finite one."""
        if nonfinite:
            warn_user(
                f"Values that are not finite are saved, first in {nonfinite}. The last finite checkpoint is kept. "
                "Resume from that one.",
                main_process_only=False,
            )
        try:
            self._staging.finalize(keep_finite=bool(nonfinite))
            if self._request.retention is not None:
                remove_old(self.target.parent, retention=self._request.retention, newest=self.target)
            remove_stale_folders(self.path.parent)
        except OSError as error:
            warn_user(
                f"`{self.target}` is saved, but older checkpoints were not removed: {error}. Remove them by hand.",
                main_process_only=False,
            )

    @contextmanager
    def _recording_failure(self) -> Iterator[None]:
        """Record an error of the block for the next round, instead of raising it here."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 (raised in `_agree`)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Record why this rank cannot save, unless it has failed before."""
        if self._failure is None:
            self._failure = error

    @property
    def _is_interrupted(self) -> bool:
        """Whether to raise the failure on this rank at once, as after Ctrl-C."""
        return self._failure is not None and not isinstance(self._failure, Exception)

    @contextmanager
    def _undone_after_error(self) -> Iterator[None]:
        """Remove the staging folder after an error, unless other ranks may already count the checkpoint as saved."""
        try:
            yield
        except BaseException:
            if self._is_rejected:
                self._staging.roll_back()
            if self.is_owner:
                self._staging.discard()
            self._staging.release()
            raise

    def _agree(
        self, stage: str, files: Sequence[FileEntry] = (), *, is_saved: bool | None = False
    ) -> list[FileEntry] | None:
        """Report this rank's outcome of a stage, and return the files of all ranks if there are parts on several disks.

        Args:
            stage: Name of the stage.
            files: The files that this rank has written since the last round.
            is_saved: On rank 0, whether the checkpoint is committed; None if that could not be undone.

        Raises:
            CheckpointError: If any rank has failed. After Ctrl-C and the like, that error is raised instead.
        """
        report = Report(
            str(self.target), self.place, self._topology.node_rank, list(files), self._reason(), is_saved
        )
        try:
            verdict = self._agreement.agree(
                self._topic(stage), json.dumps(asdict(report)), self._merge, is_begun=True
            )
            error, is_saved, parts = json.loads(verdict)
            self._is_rejected = is_saved is False and error is not None
            if error is not None:
                raise CheckpointError(error)
        except CheckpointError as error_of_all:
            if self._failure is not None and self._is_interrupted:
                raise self._failure from None
            raise error_of_all from self._failure
        return None if parts is None else [FileEntry(**entry) for entry in parts]

    def _reason(self) -> str | None:
        if self._failure is None:
            return None
        reason = reason_of(self._failure)
        if "inline_container" in reason:  # torch's writer, which does not report the cause
            free = shutil.disk_usage(folder := self.path.parent).free
            reason += f" (torch could not write a file; {free} bytes are free on the disk of `{folder}`)"
        return reason

    def _merge(self, texts: Sequence[str]) -> str:
        """On rank 0: collect the file entries of all ranks, and return the verdict."""
        reports = [Report(**json.loads(text)) for text in texts]
        entries = [entry for report in reports for entry in report.files]
        self._entries += [FileEntry(**entry) for entry in entries]
        parts = entries if any(report.place != 0 for report in reports) else None
        return json.dumps([error_in(reports), reports[0].is_saved, parts])

    def _topic(self, stage: str) -> str:
        return f"{self._request.token}/{stage}"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a stage on one rank.

    Attributes:
        target: The folder that this rank was asked to save to.
        place: The file system that it writes to; see `FileEntry`.
        node: Rank of its node.
        files: The fields of the entries of the files that it wrote.
        error: Why it failed; None if it succeeded.
        is_saved: On rank 0, whether the checkpoint is committed; None if it could not be undone.
    """

    target: str
    place: int
    node: int
    files: Sequence[Any] = ()
    error: str | None = None
    is_saved: bool | None = False


def error_in(reports: Sequence[Report]) -> str | None:
    """Return why the save failed: a rank has, or ranks of one node were given different folders; None if neither."""
    target = reports[0].target
    failed = [f"rank {rank}: {one.error}" for rank, one in enumerate(reports) if one.error is not None]
    if failed:
        reasons = "; ".join(failed)
        if reports[0].is_saved:
            return f"The checkpoint `{target}` is saved, but a later step failed ({reasons})."
        if reports[0].is_saved is None:
            undone = f"The checkpoint `{target}` may be saved: its commit could not be undone ({reasons})."
            return f"{undone} Nothing was removed. Check it with `accel checkpoint verify {target}`."
        return f"The checkpoint `{target}` was not saved ({reasons}). Earlier checkpoints are unchanged."
    targets: dict[int, str] = {}
    for report in reports:
        other = targets.setdefault(report.node, report.target)
        if other != report.target:
            return (
                f"The ranks were asked to save to different folders: `{other}` and `{report.target}`. "
                "Pass the same folder on every rank; a timestamp in the name differs between ranks."
            )
    return None
