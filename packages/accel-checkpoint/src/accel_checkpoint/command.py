"""List, verify, show, compare and pin checkpoints.

Imports torch only to show and compare their contents.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from accel_checkpoint.file_names import PINNED_NAME
from accel_checkpoint.listing import Found, State, checkpoints_in, folder_of_checkpoints, inspect_all
from accel_ops.byte_sizes import convert_bytes
from accel_state.errors import CheckpointError

_ACTIONS = (
    (
        "list",
        "show step, size, age, number of processes and state",
        "a folder of checkpoints, or of a project",
    ),
    ("verify", "read every file and compare it with its digest", "one checkpoint, or a folder of them"),
    ("show", "list names, dtypes and shapes of everything in a checkpoint", "a checkpoint"),
    ("pin", "keep a checkpoint regardless of the limits", "a checkpoint"),
    ("unpin", "undo `pin`", "a checkpoint"),
)
"""The actions on one folder: name, help, and help of the folder."""
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class CheckpointCommand:
    """``accel checkpoint``."""

    help = "List, verify, show, compare and pin checkpoints"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the actions and their arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for name, text, of in _ACTIONS:
            actions.add_parser(name, help=text).add_argument("dir", metavar="DIR", help=of)
        comparing = actions.add_parser(
            "diff", help="compare two checkpoints; the exit code is 1 if they differ"
        )
        comparing.add_argument("dir", metavar="OLD", help="a checkpoint")
        comparing.add_argument("other", metavar="NEW", help="another one")
        comparing.add_argument(
            "--names-only", action="store_true", help="compare names, dtypes and shapes only"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the chosen action and return the exit code.

        Raises:
            CheckpointError: If there is no such folder, or no checkpoint in it.
        """
        folder = Path(arguments.dir)
        if not folder.is_dir():
            raise CheckpointError(f"There is no folder `{folder}`. Check its path.")
        if arguments.action == "show":
            return show(folder)
        if arguments.action == "diff":
            return diff(folder, Path(arguments.other), values=not arguments.names_only)
        checkpoints = find(folder)
        if not checkpoints:
            raise CheckpointError(
                f"There is no checkpoint in `{folder}`. Name the folder with the checkpoints."
            )
        if arguments.action == "list":
            print(as_table(checkpoints))
            return 0
        if arguments.action in ("pin", "unpin"):
            return pin(checkpoints, is_pinned=arguments.action == "pin")
        return max([verify(each) for each in checkpoints])


command = CheckpointCommand()


def find(folder: Path) -> list[Found]:
    """Return the checkpoint at ``folder``, or the checkpoints in it."""
    return inspect_all([folder]) or checkpoints_in(folder_of_checkpoints(folder))


def verify(checkpoint: Found) -> int:
    """Print whether a checkpoint is unchanged since it was saved; return 0 if so."""
    if checkpoint.manifest is None:
        _print_error(f"{checkpoint.path}: {checkpoint.problem or 'it has no manifest to compare it with.'}")
        return 1
    problems = [checkpoint.problem] if checkpoint.problem else checkpoint.files.problems(digests=True)
    for problem in problems:
        _print_error(f"{checkpoint.path}: {problem}")
    if problems:
        return 1
    size = convert_bytes(checkpoint.manifest.num_bytes)
    print(f"{checkpoint.path}: {len(checkpoint.manifest.files_here)} files, {size}, unchanged since the save")
    return 0


def pin(checkpoints: list[Found], *, is_pinned: bool) -> int:
    """Mark one checkpoint to be kept, or remove the mark.

    Raises:
        CheckpointError: If there are several, or the mark cannot be changed.
    """
    if len(checkpoints) > 1:
        raise CheckpointError(
            "There are several checkpoints in this folder. Name the folder of one checkpoint."
        )
    mark = checkpoints[0].path / PINNED_NAME
    try:
        if is_pinned:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"`{mark}`, the file that keeps a checkpoint, cannot be changed: {error.strerror}. Check the permissions "
            "and the disk of the folder."
        ) from error
    return 0


def show(folder: Path) -> int:
    """Print name, dtype and shape of everything in a checkpoint.

    Raises:
        CheckpointError: If there is no checkpoint.
    """
    from accel_checkpoint.contents import contents_of

    group = ""
    for item in contents_of(folder):
        if item.group != group:
            group = item.group
            print(group)
        print(f"  {item.name or '(all)'}  {item.kind}")
    if not group:
        raise CheckpointError(f"There is no checkpoint in `{folder}`. Name the folder of one checkpoint.")
    return 0


def diff(old: Path, new: Path, *, values: bool) -> int:
    """Print how two checkpoints differ; return 1 if they do.

    Raises:
        CheckpointError: If there is no such folder, or no checkpoint in one.
    """
    from accel_checkpoint.contents import differences

    if not new.is_dir():
        raise CheckpointError(f"There is no folder `{new}`. Check its path.")
    num_differences = 0
    for line in differences(old, new, values=values):
        num_differences += 1
        print(line)
    return min(num_differences, 1)


def _print_error(text: str) -> None:
    print(f"error: {text}", file=sys.stderr)


def as_table(checkpoints: list[Found]) -> str:
    """Return one line per checkpoint, oldest first."""
    rows = [("checkpoint", "step", "size", "age", "processes", "state"), *map(_row, checkpoints)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths)).rstrip() for row in rows
    )


def _row(checkpoint: Found) -> tuple[str, ...]:
    manifest, step, processes = checkpoint.manifest, "?", "?"
    if checkpoint.state is State.UNREADABLE:
        return (checkpoint.path.name, "?", "?", "?", "?", checkpoint.state.value)
    if manifest is None:
        num_bytes = sum(path.stat().st_size for path in checkpoint.path.rglob("*") if path.is_file())
    else:
        step, processes, num_bytes = str(manifest.step), str(manifest.world_size), manifest.num_bytes
    state = checkpoint.state.value
    state += "" if checkpoint.is_finite else ", not finite"
    state += ", pinned" if (checkpoint.path / PINNED_NAME).exists() else ""
    return (checkpoint.path.name, step, convert_bytes(num_bytes), _age(checkpoint), processes, state)


def _age(checkpoint: Found) -> str:
    seconds = max(0.0, time.time() - checkpoint.modified_s)
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "0 s"
