"""One save on every rank, in three steps: `begin` makes the staging folder, `write` fills it, `commit` renames it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from accel_checkpoint.digests import digest_of
from accel_checkpoint.files import files_below, folders_of, force_to_disk, make_durably, regular_file
from accel_checkpoint.manifest import FileEntry, Manifest, first_nonfinite, write_manifest
from accel_checkpoint.ranks.agreement import Agreement, first
from accel_checkpoint.ranks.reports import RankReport, Verdict, reason_of, verdict_on
from accel_checkpoint.saving.pending_files import (
    NOTE_SUFFIX,
    CollectiveFile,
    MergedFile,
    PendingFile,
    write_files,
)
from accel_checkpoint.saving.progress import Progress
from accel_checkpoint.saving.removal import remove_old, remove_stale_folders
from accel_checkpoint.saving.retention import Retention
from accel_checkpoint.saving.sink import FileSink
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_checkpoint.saving.staging import Staging, check_target
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
    """

    target: Path
    token: str = ""
    retention: Retention | None = None
    step: int = 0
    iteration: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """What the manifest records about the content; see `Manifest`."""

    strategy: str = ""
    model_format: str = ""
    objects: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Content:
    """What one rank saves.

    Attributes:
        files: The files that this rank writes.
        collective: The files that all ranks write together, in the same order on each.
        merged: What rank 0 writes after all ranks have written their files.
        foreign: Names of files that this rank has put into the staging folder by other means.
        is_collective: Whether any rank may have collective files; the same on every rank.
        description: What the manifest records.
    """

    files: Sequence[PendingFile] = ()
    collective: Sequence[CollectiveFile] = ()
    merged: Sequence[MergedFile] = ()
    foreign: Sequence[str] = ()
    is_collective: bool = False
    description: Description = field(default_factory=Description)


@dataclass(frozen=True)
class Part:
    """Where one rank writes.

    Attributes:
        staging: The temporary folder.
        place: The file system of the folder; see `FileEntry`.
        is_owner: Whether this rank commits the files on its file system.
    """

    staging: Staging
    place: int
    is_owner: bool


class Rounds:
    """The rounds of one save, in which the ranks report their outcome: the first failure on any rank fails all.

    Args:
        request: What to save.
        topology: This process's rank and node.
        agreement: Exchanges reports with the other ranks.
    """

    def __init__(self, request: Request, topology: Topology, agreement: Agreement) -> None:
        self.request, self.topology = request, topology
        self._agreement = agreement
        self.failure: BaseException | None = None
        """Why this rank cannot save, raised on every rank by the next round."""
        self.is_rejected = False
        """Whether the last round failed while the checkpoint was not saved, so that this rank must undo its part."""
        self.entries: list[FileEntry] = []
        """On rank 0, the files that all ranks have reported."""

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record an error of the block for the next round, instead of raising it here."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 (raised in `agree`)
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Record why this rank cannot save, unless it has failed before."""
        if self.failure is None:
            self.failure = error

    @property
    def is_interrupted(self) -> bool:
        """Whether to raise the failure on this rank at once, as after Ctrl-C."""
        return self.failure is not None and not isinstance(self.failure, Exception)

    def wait(self, stage: str) -> None:
        """Wait until every rank has come to a stage, whether it has failed or not."""
        self._agreement.agree(self._topic(stage), "", first)

    def share_metrics(self, stage: str) -> None:
        """Wait as `wait`, and take over rank 0's metrics, by which each machine keeps its best parts."""
        own = json.dumps(dict(self.request.metrics))
        of_rank_0 = self._agreement.agree(self._topic(stage), own, first)
        self.request = replace(self.request, metrics=json.loads(of_rank_0))

    def agree(
        self, stage: str, part: Part, files: Sequence[FileEntry] = (), *, is_saved: bool | None = False
    ) -> Verdict:
        """Report this rank's outcome of a stage, and return the verdict on all.

        Args:
            stage: Name of the stage.
            part: Where this rank writes.
            files: The files that it has written since the last round.
            is_saved: On rank 0, whether the checkpoint is committed; None if that could not be undone.

        Raises:
            CheckpointError: If any rank has failed. After Ctrl-C and the like, that error is raised instead.
        """
        report = RankReport(
            str(self.request.target), part.place, self.topology.node_rank, files, self._reason(part), is_saved
        )
        try:
            verdict = Verdict.decode(
                self._agreement.agree(self._topic(stage), report.encode(), self._merge, is_begun=True)
            )
            self.is_rejected = verdict.is_saved is False and verdict.error is not None
            if verdict.error is not None:
                raise CheckpointError(verdict.error)
        except CheckpointError as error_of_all:
            if self.failure is not None and self.is_interrupted:
                raise self.failure from None
            raise error_of_all from self.failure
        return verdict

    def _reason(self, part: Part) -> str | None:
        if self.failure is None:
            return None
        reason = reason_of(self.failure)
        if "inline_container" in reason:  # torch's writer, which does not report the cause
            free = shutil.disk_usage(folder := part.staging.path.parent).free
            reason += f" (torch could not write a file; {free} bytes are free on the disk of `{folder}`)"
        return reason

    def _merge(self, texts: Sequence[str]) -> str:
        """On rank 0: collect the file entries of all ranks, and return the verdict."""
        reports = [RankReport.decode(text) for text in texts]
        self.entries += [entry for report in reports for entry in report.files]
        return verdict_on(reports, target=self.request.target).encode()

    def _topic(self, stage: str) -> str:
        return f"{self.request.token}/{stage}"


def is_saved_here(token: str) -> bool:
    """Whether this process has taken part in the save with this token."""
    return token in _saved


def begin(staging: Staging, rounds: Rounds) -> Part:
    """Create the staging folder; with several nodes, find out which of them share a file system.

    A rank that cannot create it reports that in the next round.
    """
    topology = rounds.topology
    part = Part(staging, place=0, is_owner=topology.rank == 0)
    with undone_after_error(part, rounds):
        if part.is_owner:
            _make(staging, rounds)
        if topology.num_nodes > 1:
            with rounds.recording_failure():
                if topology.local_rank == 0:
                    # NFS may cache for 30 s that this folder is missing; creating it clears that entry.
                    make_durably(staging.target.parent)
            rounds.share_metrics("begun")
            if not staging.path.exists():
                part = Part(staging, place=topology.node_rank, is_owner=topology.local_rank == 0)
            # No rank creates the folder on this node before every rank here has checked for it.
            rounds.wait("placed")
        if topology.rank != 0:
            _make(staging, rounds)
    return part


def _make(staging: Staging, rounds: Rounds) -> None:
    with rounds.recording_failure():
        if rounds.failure is None:
            check_target(staging.target)
            staging.make()


@contextmanager
def undone_after_error(part: Part, rounds: Rounds) -> Iterator[None]:
    """Remove the staging folder after an error, unless other ranks may already count the checkpoint as saved."""
    try:
        yield
    except BaseException:
        if rounds.is_rejected:
            part.staging.roll_back()
        if part.is_owner:
            part.staging.discard()
        part.staging.release()
        raise


def snapshot(content: Content, part: Part, rounds: Rounds, buffers: HostBuffers) -> Content:
    """Return the content as it is now; a failure is reported in the next round.

    Raises:
        CheckpointError: If a rank has failed before; only where files are collective.
    """
    _check_all_collected(content, part, rounds)
    files: list[PendingFile] = []
    with rounds.recording_failure():
        if rounds.failure is None:
            files += [file.snapshot(buffers) for file in content.files]
    for one in content.collective:
        with rounds.recording_failure():
            copied = one.snapshot(buffers)
            files += [] if copied is None else [copied]
    with rounds.recording_failure():
        buffers.join_streams()
    return replace(content, files=files, collective=(), is_collective=False)


def write(
    content: Content, part: Part, rounds: Rounds, *, num_threads: int, progress: Progress | None = None
) -> list[FileEntry]:
    """Write this rank's files, force them to disk and return their entries; a failure is reported in the next round.

    Args:
        content: What to write.
        part: Where to.
        rounds: The rounds of this save.
        num_threads: How many files to write at a time.
        progress: Is advanced by the bytes that this rank writes.

    Raises:
        CheckpointError: If a rank has failed before; only where files are collective.
    """
    folder, rank = part.staging.path, rounds.topology.rank
    written: list[FileEntry] = []
    _check_all_collected(content, part, rounds)
    for one in content.collective:
        with rounds.recording_failure():
            sink = one.write(folder, progress=progress)
            if sink is not None and one.file is not None:
                written.append(sink.entry(one.file.name, rank=rank, place=part.place))
    with rounds.recording_failure():
        if rounds.failure is None:
            written += write_files(
                content.files,
                folder,
                rank=rank,
                place=part.place,
                num_threads=num_threads,
                progress=progress,
            )
            for inner in folders_of(file.name for file in content.files):
                force_to_disk(folder / inner)
            written += _foreign_entries(content.foreign, part, rank=rank)
            force_to_disk(folder)
    return written


def _check_all_collected(content: Content, part: Part, rounds: Rounds) -> None:
    """Before the first collective file: raise on every rank if one has failed, since it would not take part."""
    if content.is_collective:
        rounds.agree("collected", part)


def commit(written: Sequence[FileEntry], content: Content, part: Part, rounds: Rounds) -> None:
    """Wait until every rank has written its files, and make the checkpoint visible.

    Raises:
        CheckpointError: On every rank, if any rank failed. The checkpoint is then removed entirely.
    """
    is_main, staging = rounds.topology.rank == 0, part.staging
    verdict = rounds.agree("written", part, written)
    # The other nodes commit first: once rank 0's manifest is visible, every file that it lists exists.
    if verdict.has_parts:
        others: list[FileEntry] = []
        with rounds.recording_failure():
            if part.is_owner and not is_main:
                own = [entry for entry in verdict.files if entry.place == part.place]
                others = _commit_part(own, content, part, rounds)
        rounds.agree("parts", part, others)
    is_saved: bool | None = False
    with rounds.recording_failure():
        if is_main:
            rounds.entries += _write_merged(content, part, rounds)
            _commit_part(rounds.entries, content, part, rounds)
            is_saved = True
    if is_main and not is_saved and staging.is_committed:
        is_saved = None
    if verdict.has_parts:
        # Keep the parts that were replaced until rank 0 has committed.
        rounds.agree("published", part, is_saved=is_saved)
    with rounds.recording_failure():
        if part.is_owner and rounds.failure is None:
            _clean_up(staging, rounds.request, first_nonfinite(rounds.entries or verdict.files))
    staging.release()
    rounds.agree("committed", part, is_saved=is_saved)
    _saved.add(rounds.request.token)


def _write_merged(content: Content, part: Part, rounds: Rounds) -> list[FileEntry]:
    """On rank 0: write the files that need to know about those of all ranks, and return their entries."""
    folder, notes, written = part.staging.path, dict[str, str](), list[FileEntry]()
    for entry in rounds.entries if content.merged else ():
        with suppress(FileNotFoundError):
            note = folder / f"{entry.name}{NOTE_SUFFIX}"
            notes[entry.name] = note.read_text(encoding="utf-8")
            note.unlink()
    for file in content.merged if rounds.failure is None else ():
        with FileSink(folder / file.name) as sink:
            file.write(sink, notes)
        written.append(sink.entry(file.name))
        force_to_disk((folder / file.name).parent)
    return written


def _commit_part(
    listed: Sequence[FileEntry], content: Content, part: Part, rounds: Rounds
) -> list[FileEntry]:
    """Commit the part on this file system, and return those of its files that no rank has reported."""
    request, topology, folder = rounds.request, rounds.topology, part.staging.path
    known = {entry.name for entry in listed if entry.place == part.place}
    # Hooks and engines may write files without reporting them.
    others = _foreign_entries(
        [name for name in files_below(folder) if name not in known], part, rank=topology.rank
    )
    manifest = Manifest(
        files=[*listed, *others],
        token=request.token,
        world_size=topology.world_size,
        mesh=request.mesh,
        step=request.step,
        iteration=request.iteration,
        place=part.place,
        strategy=content.description.strategy,
        model_format=content.description.model_format,
        objects=content.description.objects,
        metrics=request.metrics,
    )
    write_manifest(folder, manifest)
    part.staging.commit()
    return others


def _foreign_entries(names: Sequence[str], part: Part, *, rank: int) -> list[FileEntry]:
    """Return the manifest entries of files written by other means, after forcing them to disk."""
    folder, entries = part.staging.path, []
    for name in names:
        path = regular_file(folder, name)
        force_to_disk(path)
        entries.append(FileEntry(name, path.stat().st_size, digest_of(path), rank, part.place))
    for inner in folders_of(names):
        force_to_disk(folder / inner)
    return entries


def _clean_up(staging: Staging, request: Request, nonfinite: str) -> None:
    """Remove what the new checkpoint replaces, but not the last finite one."""
    if nonfinite:
        warn_user(
            f"Values that are not finite are saved, first in {nonfinite}. The last finite checkpoint is kept. "
            "Resume from that one.",
            main_process_only=False,
        )
    try:
        staging.finalize(keep_finite=bool(nonfinite))
        if request.retention is not None:
            remove_old(request.target.parent, retention=request.retention, newest=request.target)
        remove_stale_folders(staging.path.parent)
    except OSError as error:
        warn_user(
            f"`{request.target}` is saved, but older checkpoints were not removed: {error}. Remove them by hand.",
            main_process_only=False,
        )
