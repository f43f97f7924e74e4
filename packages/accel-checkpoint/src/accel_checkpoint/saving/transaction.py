"""One save on every rank: the stage makes a temporary folder, fills it, and renames it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from accel_checkpoint.files import (
    FileEntry,
    digest_of,
    files_below,
    folders_of,
    force_to_disk,
    make_durably,
    regular_file,
)
from accel_checkpoint.manifest import Manifest, check_complete, first_nonfinite, write_manifest
from accel_checkpoint.progress import progress_bar
from accel_checkpoint.random_states import captured
from accel_checkpoint.ranks.agreement import Agreement, first, reason_of
from accel_checkpoint.saving.handle import SaveHandle
from accel_checkpoint.saving.pending_files import (
    PendingFile,
    pending_file,
    snapshot_of,
    write_file,
    write_files,
)
from accel_checkpoint.saving.retention import Retention, remove_old
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_checkpoint.saving.staging import Staging, remove_stale_folders
from accel_state.errors import CheckpointError
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Stage:
    """Collects the files of a new checkpoint; created by `CheckpointFolder.save`.

    The checkpoint is saved when the `with` block ends, on all ranks or on none. An error in the block of one rank
    raises `CheckpointError` on all others: it is kept until the next round of reports, and then fails all ranks.

    Args:
        target: Final path of the checkpoint.
        manifest: The manifest without files and ranks; its token is the same on every rank. Rank 0's metrics are used.
        topology: This process's rank and node.
        agreement: Exchanges reports with the other ranks.
        retention: Which numbered checkpoints to keep; None keeps all.
        buffers: Memory for a snapshot that is written in the background; None writes the files before the block ends.
    """

    def __init__(
        self,
        target: Path,
        manifest: Manifest,
        *,
        topology: Topology,
        agreement: Agreement,
        retention: Retention | None = None,
        buffers: HostBuffers | None = None,
    ) -> None:
        self._manifest, self._retention, self._buffers = manifest, retention, buffers
        self._topology, self._agreement = topology, agreement
        self._staging = Staging(target, token=manifest.token)
        self.place = 0
        """The file system that this rank writes to: 0 for rank 0's, otherwise the rank of the node."""
        self.is_owner = topology.rank == 0
        """Whether this rank commits the files on its file system."""
        self._files: list[PendingFile] = []
        self._is_collective = False
        self._foreign: list[str] = []
        self._failure: BaseException | None = None
        self._verdicts: dict[str, tuple[list[FileEntry], list[FileEntry] | None]] = {}
        self._is_decided = False
        self.handle: SaveHandle | None = None
        """Handle of a save in the background, set when the block ends; its thread then owns the staging folder."""

    @property
    def path(self) -> Path:
        """The temporary folder. Files written there by other means also become part of the checkpoint; see `wrote`."""
        return self._staging.path

    @property
    def target(self) -> Path:
        """Final path of the checkpoint."""
        return self._staging.target

    def write(self, name: str, content: Any, *, rank: int | None = 0) -> None:
        """Add a file to the checkpoint.

        The file is written when the block ends. Do not change ``content`` before that.

        Args:
            name: File name. Its suffix selects the format: `.safetensors` for a dict of tensors, `.json`, or `.bin`,
                `.pt`, `.pth` and `.pkl` for `torch.save` (tensors, numbers, strings and containers of these).
            content: Content of the file.
            rank: The rank that writes content that all ranks share. Pass None for content of this rank only, under a
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
        """Report files that this rank has written to `path` by other means, such as an engine's save.

        This rank reads them again to compute their digests. Rank 0 does so, one by one, for files that no rank reports.

        Args:
            *names: Relative to `path`, separated by `/`.
        """
        self._foreign.extend(names)

    def gather(
        self, collect: Callable[[Stage], Iterable[PendingFile]], *, is_collective: bool = False
    ) -> None:
        """Add the files that ``collect`` returns. If it raises, every rank raises when the block ends.

        Args:
            collect: Returns the files of this rank, and the files that all ranks write together; called at once.
            is_collective: Whether all ranks may write some together; the same on every rank.
        """
        self._is_collective = self._is_collective or is_collective
        # Even after a failure: the other ranks may wait in its collectives.
        if self._failure is None or self._topology.world_size > 1:
            self._files += self._attempt(collect, self) or ()

    def __enter__(self) -> Self:
        with self._undone_after_error():
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        files, self._files = self._files, []  # the handle of a save may live longer than the snapshot
        if error is not None:
            self._fail(error)
            # This rank raises the error of its block.
            with suppress(CheckpointError), self._undone_after_error():
                self._complete(files)
            return
        with self._undone_after_error():
            if self._buffers is None:
                self._complete(files, num_threads=os.cpu_count() or 1)
            else:
                self._complete_in_background(self._snapshot(files, self._buffers))

    def _complete_in_background(self, files: list[PendingFile]) -> None:
        def finish() -> Path:
            try:
                self._complete(files)
            except BaseException as error:
                self._abort(error)
                raise
            return self.target

        if self._is_interrupted:
            finish()  # which raises the interruption here
        self.handle = SaveHandle(finish, target=self.target)
        self.handle.start()

    def _complete(self, files: Sequence[PendingFile], *, num_threads: int = 1) -> None:
        """Write the files, and commit the checkpoint when every rank has written its files.

        Raises:
            CheckpointError: On every rank, if any rank failed. The checkpoint is then removed entirely.
        """
        entries, parts = self._agree("written", self._write(files, num_threads))
        self._commit(files, entries, parts)

    def _start(self) -> None:
        """Create the staging folder; with several nodes, detect which of them share a file system.

        A rank that cannot create it reports that in the next round.
        """
        topology = self._topology
        if topology.rank == 0:
            self._attempt(self._staging.make)
        if topology.num_nodes > 1:
            if topology.local_rank == 0:
                # NFS may cache for 30 s that this folder is missing; creating it clears that entry.
                self._attempt(make_durably, self.target.parent)
            # Each machine keeps its best parts by rank 0's metrics.
            metrics = json.dumps(dict(self._manifest.metrics))
            metrics = self._agreement.agree(self._topic("begun"), metrics, first)
            self._manifest = replace(self._manifest, metrics=json.loads(metrics))
            if not self.path.exists():
                self.place, self.is_owner = topology.node_rank, topology.local_rank == 0
            # No rank creates the folder on this node before every rank here has checked for it.
            self._agreement.agree(self._topic("placed"), "", first)
        if topology.rank != 0 and self._failure is None:
            self._attempt(self._staging.make)

    def _snapshot(self, files: Sequence[PendingFile], buffers: HostBuffers) -> list[PendingFile]:
        """Return the files with copies of their content; a failure is reported in the next round."""
        self._check_all_collected()
        self._is_collective = False
        buffers.start()
        copies: list[PendingFile | None] = []
        for file in files:
            if file.deferred or (file.is_writer and self._failure is None):
                copies.append(self._attempt(snapshot_of, file, buffers))
        return [copy for copy in copies if copy is not None]

    def _write(self, files: Sequence[PendingFile], num_threads: int) -> list[FileEntry]:
        """Write the files, force them to disk, and return the entries of the files that this rank writes."""
        self._check_all_collected()
        folder, written = self.path, list[FileEntry]()
        with suppress(OSError):
            os.utime(folder)  # so that other machines see that it is in use
        is_shown = self._topology.rank == 0 and self._buffers is None
        with progress_bar(f"Saving {self.target.name}", is_shown=is_shown) as advance:
            for file in files:
                if file.deferred:
                    entry = self._attempt(write_file, file, folder, advance=advance)
                    written += [] if entry is None else [entry]
            if self._failure is not None:
                return []
            remaining = [file for file in files if file.is_writer and not file.deferred]
            written += write_files(remaining, folder, num_threads=num_threads, advance=advance)
        self._force_folders_to_disk([entry.name for entry in written])
        written += self._foreign_entries(self._foreign)
        return [replace(entry, rank=self._topology.rank, place=self.place) for entry in written]

    def _check_all_collected(self) -> None:
        """Before the first collective file: raise on every rank if one has failed, since it would not take part."""
        if self._is_collective:
            self._agree("collected")

    def _commit(
        self, files: Sequence[PendingFile], entries: list[FileEntry], parts: Sequence[FileEntry] | None
    ) -> None:
        """Commit the checkpoint, and remove what it replaces.

        Args:
            files: The files of this rank.
            entries: On rank 0, the entries of the files of all ranks.
            parts: On every rank, these entries if they are on several file systems; None if they are on one.
        """
        is_main = self._topology.rank == 0
        # The other nodes commit first: once rank 0's manifest is visible, every file that it lists exists.
        if parts is not None:
            unreported = list[FileEntry]()
            if self.is_owner and not is_main and self._failure is None:
                unreported = self._commit_part([part for part in parts if part.place == self.place])
            entries += self._agree("parts", unreported)[0]
        if is_main and self._failure is None:
            self._commit_main(files, entries)
        if parts is not None:
            # Keep the parts that were replaced until rank 0 has committed.
            self._agree("published")
        if self.is_owner and self._failure is None:
            self._clean_up(first_nonfinite(entries or parts or ()))
        self._staging.release()
        self._agree("committed")

    def _commit_main(self, files: Sequence[PendingFile], entries: list[FileEntry]) -> None:
        """On rank 0: write the tables of states that the ranks have written in parts, and commit."""
        names = [entry.name for entry in entries]
        tables = [table for file in files if (table := file.table(names)) is not None]
        if tables:
            entries += write_files(tables, self.path)
            self._force_folders_to_disk(table.name for table in tables)
        self._commit_part(entries)

    def _commit_part(self, listed: Sequence[FileEntry]) -> list[FileEntry]:
        """Commit the part on this file system, and return its files that no rank has reported."""
        known = {entry.name for entry in listed if entry.place == self.place}
        # Hooks and engines may write files without reporting them.
        unknown = [name for name in files_below(self.path) if name not in known]
        unreported = self._foreign_entries(unknown) if unknown else []
        manifest = replace(
            self._manifest,
            files=[*listed, *unreported],
            world_size=self._topology.world_size,
            place=self.place,
        )
        write_manifest(self.path, manifest)
        self._staging.commit()
        return unreported

    def _foreign_entries(self, names: Sequence[str]) -> list[FileEntry]:
        """Return the manifest entries of files written by other means, after forcing them to disk."""
        entries = []
        for name in names:
            path = regular_file(self.path, name)
            force_to_disk(path)
            entry = FileEntry(name, path.stat().st_size, digest_of(path), self._topology.rank, self.place)
            entries.append(entry)
        self._force_folders_to_disk(names)
        return entries

    def _force_folders_to_disk(self, names: Iterable[str]) -> None:
        path = self.path
        for folder in folders_of(names):
            force_to_disk(path / folder)

    def _clean_up(self, nonfinite: str) -> None:
        """Remove what the new checkpoint replaces, but not the last finite one."""
        if nonfinite:
            warn_user(
                f"Values that are not finite are saved, first in {nonfinite}. The last finite checkpoint is kept. "
                "Resume from that one.",
                main_process_only=False,
            )
        try:
            if self._retention is not None:
                remove_old(self.target.parent, retention=self._retention, newest=self.target)
            check_complete(self.target, token=self._manifest.token)
            self._staging.finalize(keep_finite=bool(nonfinite))
            remove_stale_folders(self._staging.path.parent)
        except CheckpointError:
            self._staging.roll_back()
            raise
        except OSError as error:
            warn_user(
                f"`{self.target}` is saved, but older checkpoints were not removed: {error}. Remove them by hand.",
                main_process_only=False,
            )

    def _attempt(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T | None:
        """Return the result of ``work``; record its error for the next round, since other ranks may wait in between."""
        try:
            return work(*args, **options)
        except BaseException as error:  # noqa: BLE001 (raised in `_agree`)
            self._fail(error)
            return None

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
        """Abort the save after an error, unless a thread is completing it."""
        try:
            yield
        except BaseException as error:
            if self.handle is None or self.handle.abandon():
                self.handle = None
                self._abort(error)
            raise

    def _abort(self, error: BaseException) -> None:
        """Report an error to the other ranks unless they know, and remove the staging folder.

        It stays if other ranks may already count the checkpoint as saved.

        Raises:
            CheckpointError: As on all ranks, if they did not know.
        """
        try:
            if not self._is_decided:
                self._fail(error)
                self._complete(())
        finally:
            if self.is_owner:
                self._staging.discard()
            self._staging.release()

    def _agree(
        self, stage: str, files: Sequence[FileEntry] = ()
    ) -> tuple[list[FileEntry], list[FileEntry] | None]:
        """Report this rank's outcome of a stage, unless it has been agreed on before.

        Args:
            stage: Name of the stage.
            files: The files that this rank has written since the last round.

        Returns:
            On rank 0, the files of all ranks; on every rank, these files if they are on several file systems, or else
            None.

        Raises:
            CheckpointError: If any rank has failed. After Ctrl-C and the like, that error is raised instead.
        """
        if stage in self._verdicts:
            return self._verdicts[stage]
        entries = list[FileEntry]()

        def verdict_on(texts: Sequence[str]) -> str:
            reports = [Report(**json.loads(text)) for text in texts]
            files = [entry for report in reports for entry in report.files]
            entries.extend(FileEntry(**entry) for entry in files)
            is_split = any(report.place != 0 for report in reports)
            return json.dumps([error_in(reports), reports[0].is_saved, files if is_split else None])

        target, node = str(self.target), self._topology.node_rank
        report = Report(target, self.place, node, list(files), self._reason(), self._staging.is_saved)
        self._is_decided = self._topology.rank == 0  # whose agreement reports any error
        try:
            verdict = self._agreement.agree(
                self._topic(stage), json.dumps(asdict(report)), verdict_on, is_begun=True
            )
            error, is_saved, parts = json.loads(verdict)
            if error is not None:
                if is_saved is False:
                    self._staging.roll_back()
                raise CheckpointError(error)
        except CheckpointError as error_of_all:
            self._is_decided = True
            if self._failure is not None and self._is_interrupted:
                raise self._failure from None
            raise error_of_all from self._failure
        self._is_decided = stage == "committed"
        self._verdicts[stage] = entries, None if parts is None else [FileEntry(**entry) for entry in parts]
        return self._verdicts[stage]

    def _reason(self) -> str | None:
        if self._failure is None:
            return None
        reason = reason_of(self._failure)
        if "inline_container" in reason:  # torch's writer, which does not report the cause
            free = shutil.disk_usage(folder := self.path.parent).free
            reason += f" (torch could not write a file; {free} bytes are free on the disk of `{folder}`)"
        return reason

    def _topic(self, stage: str) -> str:
        return f"{self._manifest.token}/{stage}"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a stage on one rank.

    Attributes:
        target: The folder that was passed on this rank.
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
    failed = [f"rank {rank}: {each.error}" for rank, each in enumerate(reports) if each.error is not None]
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
                f"The ranks save to different folders: `{other}` and `{report.target}`. "
                "Pass the same folder on every rank; a timestamp in the name differs between ranks."
            )
    return None
