"""The report of each rank on a save, and rank 0's verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from accel_checkpoint.manifest import FileEntry


class _Encoded:
    def encode(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]  # its subclasses are dataclasses

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return what `encode` wrote."""
        content = json.loads(text)
        return cls(**{**content, "files": [FileEntry(**entry) for entry in content["files"]]})


@dataclass(frozen=True, slots=True)
class RankReport(_Encoded):
    """The outcome of a stage on one rank.

    Attributes:
        target: The folder that this rank was asked to save to.
        place: The file system that it writes to; see `FileEntry`.
        node: Rank of its node.
        files: The files that it wrote.
        error: Why it failed; None if it succeeded.
        is_saved: On rank 0, whether the checkpoint is committed; None if it could not be undone.
    """

    target: str
    place: int
    node: int
    files: Sequence[FileEntry] = ()
    error: str | None = None
    is_saved: bool | None = False


def reason_of(error: BaseException) -> str:
    """Describe an error in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass(frozen=True, slots=True)
class Verdict(_Encoded):
    """The outcome of a stage on all ranks.

    Attributes:
        error: Why the save failed; None if it has not.
        is_saved: Whether the checkpoint is committed; None if it could not be undone.
        has_parts: Whether the nodes have separate file systems, each with a part of the checkpoint.
        files: The files that all ranks wrote; empty unless there are parts.
    """

    error: str | None = None
    is_saved: bool | None = False
    has_parts: bool = False
    files: Sequence[FileEntry] = ()


def verdict_on(reports: Sequence[RankReport], *, target: object) -> Verdict:
    """Merge the reports on a stage; an error if a rank failed, or ranks of one node were given different folders.

    Args:
        reports: The reports of all ranks.
        target: Final path of the checkpoint.
    """
    has_parts = any(report.place != 0 for report in reports)
    return Verdict(
        error=_error_in(reports, target=target),
        is_saved=reports[0].is_saved,
        has_parts=has_parts,
        files=[entry for report in reports for entry in report.files] if has_parts else (),
    )


def _error_in(reports: Sequence[RankReport], *, target: object) -> str | None:
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
