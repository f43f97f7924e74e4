"""What the ranks tell each other about a save."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from accel_checkpoint.manifest import FileEntry


@dataclass(frozen=True, slots=True)
class RankReport:
    """How one rank fared.

    Attributes:
        target: The folder that it was asked to save to.
        place: Which file system it writes to; see `FileEntry`.
        node: Its machine.
        files: What it wrote.
        error: Why it failed, None where it did not.
        is_saved: On the main process, whether the checkpoint has its name.
    """

    target: str
    place: int
    node: int
    files: Sequence[FileEntry] = ()
    error: str | None = None
    is_saved: bool = False

    def encode(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> RankReport:
        """Return the note of a text."""
        content = json.loads(text)
        return cls(**{**content, "files": [FileEntry(**entry) for entry in content["files"]]})


def reason_of(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks are told after a stage of a save.

    Attributes:
        error: Why the save has failed, None while it has not.
        is_saved: Whether the checkpoint has its name.
        has_parts: Whether machines have file systems of their own, each with a part of the checkpoint.
        files: What all ranks wrote, where they need to know it: if there are parts.
    """

    error: str | None = None
    is_saved: bool = False
    has_parts: bool = False
    files: Sequence[FileEntry] = ()

    def encode(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Verdict:
        """Return the verdict of a text."""
        content = json.loads(text)
        return cls(**{**content, "files": [FileEntry(**entry) for entry in content["files"]]})


def verdict_on(reports: Sequence[RankReport], *, target: object) -> Verdict:
    """Say how a stage went: an error if any rank failed, or ranks of one machine were given different folders.

    Args:
        reports: Of all ranks.
        target: Where the checkpoint was to be.
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
            return f"The checkpoint `{target}` is saved; what comes after it failed ({reasons})."
        return f"The checkpoint `{target}` was not saved ({reasons}). Earlier checkpoints are as they were."
    targets: dict[int, str] = {}
    for report in reports:
        other = targets.setdefault(report.node, report.target)
        if other != report.target:
            return (
                f"The ranks were asked to save to different folders: `{other}` and `{report.target}`. "
                "Give every rank the same; a time in the name differs between them."
            )
    return None
