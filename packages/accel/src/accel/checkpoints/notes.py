"""What the ranks tell each other about a save."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from accel.checkpoints.manifest import FileEntry
from accel_state.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Note:
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
    def decode(cls, text: str) -> Note:
        """Return the note of a text."""
        content = json.loads(text)
        return cls(**{**content, "files": [FileEntry(**entry) for entry in content["files"]]})


def reason_of(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def check_all_well(notes: Sequence[Note], *, target: object) -> None:
    """Raise if any rank failed, or ranks of one machine were given different folders.

    Args:
        notes: Of all ranks.
        target: Where the checkpoint was to be.

    Raises:
        CheckpointError: With every failed rank's own reason.
    """
    failed = [f"rank {rank}: {note.error}" for rank, note in enumerate(notes) if note.error is not None]
    if failed:
        reasons = "; ".join(failed)
        if notes[0].is_saved:
            raise CheckpointError(
                f"The checkpoint `{target}` is saved; what comes after it failed ({reasons})."
            )
        raise CheckpointError(
            f"The checkpoint `{target}` was not saved ({reasons}). Earlier checkpoints are as they were."
        )
    for note in notes:
        twin = next(other for other in notes if other.node == note.node)
        if twin.target != note.target:
            raise CheckpointError(
                f"The ranks were asked to save to different folders: `{twin.target}` and `{note.target}`. "
                "Give every rank the same; a time in the name differs between them."
            )
