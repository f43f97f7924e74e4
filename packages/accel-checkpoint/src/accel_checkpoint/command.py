"""List, verify, show, compare and pin checkpoints.

Imports torch only to show and compare their contents.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from accel_checkpoint.file_names import PINNED_NAME
from accel_checkpoint.files import Digest
from accel_checkpoint.listing import Found, State, checkpoints_in, folder_of_checkpoints, inspect_all
from accel_checkpoint.progress import watched
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
_JSON = "print it as JSON"
_CHANGES = {"+": "added", "-": "removed", "~": "changed"}
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class CheckpointCommand:
    """``accel checkpoint``."""

    help = "List, verify, show, compare and pin checkpoints"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the actions and their arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for name, text, of in _ACTIONS:
            action = actions.add_parser(name, help=text)
            action.add_argument("dir", metavar="DIR", help=of)
            if "pin" not in name:
                action.add_argument("--json", action="store_true", help=_JSON)
        comparing = actions.add_parser(
            "diff", help="compare two checkpoints; the exit code is 1 if they differ"
        )
        comparing.add_argument("dir", metavar="OLD", help="a checkpoint")
        comparing.add_argument("other", metavar="NEW", help="another one")
        comparing.add_argument("--json", action="store_true", help=_JSON)
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
            return show(folder, as_json=arguments.json)
        if arguments.action == "diff":
            values = not arguments.names_only
            return diff(folder, Path(arguments.other), values=values, as_json=arguments.json)
        checkpoints = find(folder)
        if not checkpoints:
            raise CheckpointError(
                f"There is no checkpoint in `{folder}`. Name the folder with the checkpoints."
            )
        if arguments.action == "list":
            print(_as_json(map(facts_of, checkpoints)) if arguments.json else as_table(checkpoints))
            return 0
        if arguments.action in ("pin", "unpin"):
            return pin(checkpoints, is_pinned=arguments.action == "pin")
        return verify(checkpoints, as_json=arguments.json)


command = CheckpointCommand()


def find(folder: Path) -> list[Found]:
    """Return the checkpoint at ``folder``, or the checkpoints in it."""
    for found in (inspect_all([folder]), checkpoints_in(folder_of_checkpoints(folder))):
        if checkpoints := [one for one in found if not one.has_weights_alone]:
            return checkpoints
    return []


def verify(checkpoints: list[Found], *, as_json: bool = False) -> int:
    """Print whether checkpoints are unchanged since they were saved; return 0 if all are."""
    results = []
    for found in checkpoints:
        manifest, problems = found.manifest, [found.problem] if found.problem else []
        if manifest is None:
            problems = problems or ["it has no manifest, so there is nothing to compare it with."]
        elif not problems:
            total, label = manifest.num_bytes, f"Verifying {found.path.name}"
            with watched(label, lambda: Digest.num_bytes_of_all, total=total):
                problems = found.files.problems(digests=True)
        results.append({"path": str(found.path), "problems": problems})
        if as_json:
            continue
        for problem in problems:
            print(f"error: {found.path}: {problem}", file=sys.stderr)
        if manifest is not None and not problems:
            size = convert_bytes(manifest.num_bytes)
            print(f"{found.path}: {len(manifest.files_here)} files, {size}, unchanged since the save")
    if as_json:
        print(_as_json(results))
    return int(any(one["problems"] for one in results))


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


def show(folder: Path, *, as_json: bool = False) -> int:
    """Print name, dtype and shape of everything in a checkpoint.

    Raises:
        CheckpointError: If there is no checkpoint.
    """
    from accel_checkpoint.contents import contents_of

    rows, group = [], ""
    for item in contents_of(folder):
        rows.append({"group": item.group, "name": item.name, "kind": item.kind})
        if as_json:
            continue
        if item.group != group:
            group = item.group
            print(group)
        print(f"  {item.name or '(all)'}  {item.kind}")
    if not rows:
        raise CheckpointError(f"There is no checkpoint in `{folder}`. Name the folder of one checkpoint.")
    if as_json:
        print(_as_json(rows))
    return 0


def diff(old: Path, new: Path, *, values: bool, as_json: bool = False) -> int:
    """Print how two checkpoints differ; return 1 if they do.

    Raises:
        CheckpointError: If there is no such folder, or no checkpoint in one.
    """
    from accel_checkpoint.contents import differences

    if not new.is_dir():
        raise CheckpointError(f"There is no folder `{new}`. Check its path.")
    found = []
    for mark, label, text in differences(old, new, values=values):
        found.append({"change": _CHANGES[mark], "name": label, "difference": text})
        if not as_json:
            print(mark, label, text)
    if as_json:
        print(_as_json(found))
    return int(bool(found))


def _as_json(rows: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps(list(rows), indent=2)


def as_table(checkpoints: list[Found]) -> str:
    """Return one line per checkpoint, oldest first."""
    rows = [("checkpoint", "step", "size", "age", "processes", "state"), *map(_row, checkpoints)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths)).rstrip() for row in rows
    )


def facts_of(found: Found) -> dict[str, Any]:
    """Return what the table shows of a checkpoint, as plain values; None for what is unknown."""
    manifest, num_bytes = found.manifest, None
    if manifest is not None:
        num_bytes = manifest.num_bytes
    elif found.state is not State.UNREADABLE:
        num_bytes = sum(path.stat().st_size for path in found.path.rglob("*") if path.is_file())
    return {
        "path": str(found.path),
        "step": None if manifest is None else manifest.step,
        "num_bytes": num_bytes,
        "modified_s": found.modified_s,
        "num_processes": None if manifest is None else manifest.world_size,
        "state": found.state.value,
        "is_finite": found.is_finite,
        "is_pinned": num_bytes is not None and (found.path / PINNED_NAME).exists(),
    }


def _row(found: Found) -> tuple[str, ...]:
    facts = facts_of(found)
    is_known = facts["num_bytes"] is not None
    state = facts["state"] + ("" if facts["is_finite"] else ", not finite")
    state += ", pinned" if facts["is_pinned"] else ""
    size, age = (convert_bytes(facts["num_bytes"]), _age(found)) if is_known else ("?", "?")
    step, processes = ("?" if facts[key] is None else str(facts[key]) for key in ("step", "num_processes"))
    return (found.path.name, step, size, age, processes, state)


def _age(checkpoint: Found) -> str:
    seconds = max(0.0, time.time() - checkpoint.modified_s)
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "0 s"
