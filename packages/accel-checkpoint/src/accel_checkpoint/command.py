"""List the checkpoints in a folder, or verify that their files are unchanged.

Does not import torch.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from accel_checkpoint.manifest import problems_of
from accel_checkpoint.reading.listing import Found, State, checkpoints_in, folder_of_checkpoints, inspect_all
from accel_ops.byte_sizes import convert_bytes
from accel_state.errors import CheckpointError

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class CheckpointCommand:
    """``accel checkpoint``."""

    help = "List the checkpoints in a folder, or verify that their files are unchanged"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the actions and their arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        listing = actions.add_parser("list", help="show step, size, age, number of processes and state")
        listing.add_argument("dir", metavar="DIR", help="a folder of checkpoints, or of a project")
        verifying = actions.add_parser("verify", help="read every file and compare it with its digest")
        verifying.add_argument("dir", metavar="DIR", help="one checkpoint, or a folder of them")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the chosen action and return the exit code."""
        folder = Path(arguments.dir)
        if not folder.is_dir():
            raise CheckpointError(f"There is no folder `{folder}`. Check its path.")
        found = find(folder)
        if not found:
            raise CheckpointError(
                f"There is no checkpoint in `{folder}`. Name the folder in which checkpoints lie."
            )
        if arguments.action == "list":
            print(as_table(found))
            return 0
        return max([verify(one) for one in found])


command = CheckpointCommand()


def find(folder: Path) -> list[Found]:
    """Return the checkpoint at ``folder``, or the checkpoints in it."""
    return inspect_all([folder]) or checkpoints_in(folder_of_checkpoints(folder))


def verify(found: Found) -> int:
    """Print whether a checkpoint is unchanged since it was saved; return 0 if so."""
    if found.manifest is None:
        _print_error(
            f"{found.path}: {found.problem or 'it has no manifest, so there is nothing to compare it with.'}"
        )
        return 1
    problems = [found.problem] if found.problem else problems_of(found.path, found.manifest, digests=True)
    for problem in problems:
        _print_error(f"{found.path}: {problem}")
    if problems:
        return 1
    size = convert_bytes(found.manifest.num_bytes)
    print(f"{found.path}: {len(found.manifest.files_here)} files, {size}, as they were saved")
    return 0


def _print_error(text: str) -> None:
    print(f"error: {text}", file=sys.stderr)


def as_table(found: list[Found]) -> str:
    """Return one line per checkpoint, oldest first."""
    rows = [("checkpoint", "step", "size", "age", "processes", "state"), *(_row(one) for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths)).rstrip() for row in rows
    )


def _row(found: Found) -> tuple[str, ...]:
    manifest, step, processes = found.manifest, "?", "?"
    if found.state is State.UNREADABLE:
        return (found.path.name, "?", "?", "?", "?", found.state.value)
    if manifest is None:
        num_bytes = sum(path.stat().st_size for path in found.path.rglob("*") if path.is_file())
    else:
        step, processes, num_bytes = str(manifest.step), str(manifest.world_size), manifest.num_bytes
    state = found.state.value if found.is_finite else f"{found.state.value}, not finite"
    return (found.path.name, step, convert_bytes(num_bytes), _age(found), processes, state)


def _age(found: Found) -> str:
    seconds = max(0.0, time.time() - found.modified_s)
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "0 s"
