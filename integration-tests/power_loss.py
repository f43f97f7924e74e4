"""Save, cut the power at every call in thought, and see that a complete checkpoint is there.

Three saves are recorded: each call that changes names, and each flush of a file or folder. After a power loss the disk
holds what was flushed before; of the other changes of names each may be there or not, and each file that was not
flushed may be empty, written in part, full of zeros or complete. Each such state is built in an empty folder, and a
fresh look must find the old checkpoint or the new one, with every digest right; once a save has returned, its own.

The tests draw so many states of each way to save at random; those that are alike are built once.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from accel_checkpoint import CheckpointFolder, SavedCheckpoint
from accel_checkpoint.listing import check_loadable, find_newest
from accel_checkpoint.saving import staging
from accel_state import PartialState
from accel_state.errors import CheckpointError

WAYS = ("numbered", "replaced", "replaced without exchange", "filled", "background")
DATA = ("complete", "empty", "quarter", "half", "all but a byte", "zeros")
"""What a file that has not been flushed may hold."""
NUM_SAVES = 3


@dataclass
class Change:
    """One change of names: what ``entries``, of folders by their inode, are afterwards; None removes an entry.

    Attributes:
        at: Number of the call.
        requires: Entries that must be there before, for the change to have happened.
        entries: The entries that it sets.
        flushed: Number of the call that flushed it, if any.
    """

    at: int
    requires: dict[tuple[int, str], int]
    entries: dict[tuple[int, str], int | None]
    flushed: float = float("inf")


@dataclass(frozen=True)
class State:
    """A state of the disk after a power loss.

    Attributes:
        at: The last call before it.
        changes: The changes of names that are there.
        data: What the files hold that were not flushed, by their inode.
    """

    at: int
    changes: tuple[Change, ...]
    data: dict[int, str]


@dataclass
class Recording:
    """The calls of one save below a folder."""

    root: Path
    count: int = 0
    changes: list[Change] = field(default_factory=list)
    folders: set[int] = field(default_factory=set)
    flushes: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    before: dict[tuple[int, str], int] = field(default_factory=dict)
    returns: list[int] = field(default_factory=list)
    contents: dict[int, bytes] = field(default_factory=dict)
    identities: dict[int, int] = field(default_factory=dict)

    def identity(self, path: Path) -> int:
        """Return what tells a file or folder from all others; inodes are used again."""
        inode = path.lstat().st_ino
        return self.identities.setdefault(inode, inode)

    def entry(self, path: Path) -> tuple[int, str]:
        """Return the folder and the name of a path."""
        return self.identity(path.parent), path.name

    def look(self) -> None:
        """Take what is there for flushed."""
        for path in [self.root, *self.root.rglob("*")]:
            inode = self.identity(path)
            if path != self.root:
                self.before[self.entry(path)] = inode
            if path.is_dir():
                self.folders.add(inode)
            else:
                self.flushes[inode] = [(0, path.read_bytes())]

    def finish(self) -> None:
        """Note that a save has returned, and what files hold that were not flushed."""
        self.returns.append(self.count)
        for path in self.root.rglob("*"):
            if path.is_file():
                self.contents.setdefault(self.identity(path), path.read_bytes())

    def created(self, path: Path) -> None:
        """Note a new file or folder."""
        inode = path.stat().st_ino
        self.identities[inode] = identity = -1 - self.count
        if path.is_dir():
            self.folders.add(identity)
        self._change({}, {self.entry(path): identity})

    def linked(self, path: Path) -> None:
        """Note another name of a file."""
        self._change({}, {self.entry(path): self.identity(path)})

    def renamed(self, source: Path, target: Path, inode: int) -> None:
        """Note a name that was moved, and has replaced what had it."""
        self._change({self.entry(source): inode}, {self.entry(source): None, self.entry(target): inode})

    def exchanged(self, one: Path, other: Path, inodes: tuple[int, int]) -> None:
        """Note two names that have changed places."""
        self._change(
            {self.entry(one): inodes[0], self.entry(other): inodes[1]},
            {self.entry(one): inodes[1], self.entry(other): inodes[0]},
        )

    def removed(self, entry: tuple[int, str], inode: int) -> None:
        """Note a name that is gone."""
        self._change({entry: inode}, {entry: None})

    def flushed(self, path: Path) -> None:
        """Note that a file's content, or all changes of the names in a folder, are on the disk."""
        self.count += 1
        inode = self.identity(path)
        if not path.is_dir():
            self.flushes.setdefault(inode, []).append((self.count, path.read_bytes()))
            return
        self._flush_folder(inode)

    def _flush_folder(self, inode: int) -> None:
        for change in self.changes:
            if change.flushed > self.count and any(folder == inode for folder, _ in change.entries):
                change.flushed = self.count
                for entry, removed in change.requires.items():
                    if change.entries == {entry: None} and removed in self.folders:
                        self._flush_folder(removed)  # what was in it does not matter any more

    def _change(
        self, requires: dict[tuple[int, str], int], entries: dict[tuple[int, str], int | None]
    ) -> None:
        self.count += 1
        self.changes.append(Change(self.count, requires, entries))

    def states(self, chance: random.Random, num_states: int) -> Iterator[State]:
        """Yield states after power losses, drawn at random."""
        for _ in range(num_states):
            at = chance.randint(0, self.count)
            sure, pending = self._at(at)
            share = chance.choice((0.1, 0.5, 0.9))
            kept = [change for change in pending if chance.random() < share]
            yield State(at, (*sure, *kept), {inode: chance.choice(DATA) for inode in self._unflushed(at)})

    def _unflushed(self, at: int) -> list[int]:
        """Return the files that have been created, and are flushed later or never."""
        created = {
            inode
            for change in self.changes
            if change.at <= at and not change.requires
            for inode in change.entries.values()
            if inode is not None and inode not in self.folders
        }
        return sorted(inode for inode in created if not any(n <= at for n, _ in self.flushes.get(inode, [])))

    def _at(self, at: int) -> tuple[list[Change], list[Change]]:
        issued = [change for change in self.changes if change.at <= at]
        return [one for one in issued if one.flushed <= at], [one for one in issued if one.flushed > at]

    def tree(self, changes: tuple[Change, ...]) -> dict[tuple[int, str], int] | None:
        """Return the entries of all folders after these changes; None if one cannot have happened without another."""
        entries = dict(self.before)
        for change in sorted(changes, key=lambda one: one.at):
            if any(entries.get(entry) != inode for entry, inode in change.requires.items()):
                return None
            for entry, inode in change.entries.items():
                if inode is None:
                    entries.pop(entry, None)
                else:
                    entries[entry] = inode
        return entries

    def content(self, inode: int, state: State) -> bytes:
        """Return what a file holds after a power loss."""
        flushes = self.flushes.get(inode, [])
        if inode not in state.data:
            return next(content for number, content in reversed(flushes) if number <= state.at)
        final = flushes[0][1] if flushes else self.contents.get(inode, b"")
        lengths = {
            "empty": 0,
            "quarter": len(final) // 4,
            "half": len(final) // 2,
            "all but a byte": len(final) - 1,
        }
        kind = state.data[inode]
        return bytes(len(final)) if kind == "zeros" else final[: lengths.get(kind, len(final))]

    def values_after(self, at: int) -> set[float]:
        """Return the values of the saves that a checkpoint may be of: the last that has returned, and the next."""
        num_returned = sum(number <= at for number in self.returns)
        return {1.0 + num_returned, *([2.0 + num_returned] if num_returned < NUM_SAVES else [])}


def record(patch: pytest.MonkeyPatch, root: Path) -> Recording:
    """Record the calls below a folder from now on, until the patches are undone."""
    recording, lock = Recording(root), threading.RLock()
    recording.look()

    def located(path, dir_fd=None) -> Path:
        folder = Path.cwd() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        return folder / os.fspath(path)

    def watch(module, name, wrapped):
        real = getattr(module, name)

        def watched(*args, **options):
            with lock:  # several threads write files
                return wrapped(real, *args, **options)

        patch.setattr(module, name, watched)

    def opened(real, path, *args, **options):
        is_new = not isinstance(path, int) and not os.path.lexists(path)
        result = real(path, *args, **options)
        if is_new and located(path).is_relative_to(root):
            recording.created(located(path))
        return result

    def made(real, path, *args, **options):
        real(path, *args, **options)
        if located(path).is_relative_to(root):
            recording.created(located(path))

    def renamed(real, source, target, **options):
        inode = recording.identity(located(source))
        real(source, target, **options)
        recording.renamed(located(source), located(target), inode)

    def linked(real, source, target, **options):
        real(source, target, **options)
        recording.linked(located(target))

    def removed(real, path, *, dir_fd=None):
        place = located(path, dir_fd)
        entry, inode = recording.entry(place), recording.identity(place)
        real(path, dir_fd=dir_fd)
        recording.removed(entry, inode)

    def flushed(real, descriptor):
        real(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(root):
            recording.flushed(path)

    def exchanged(real, one, other):
        inodes = recording.identity(one), recording.identity(other)
        is_done = real(one, other)
        if is_done:
            recording.exchanged(one, other, inodes)
        return is_done

    for module, name, wrapped in [
        (os, "open", opened), (io, "open", opened), (os, "mkdir", made), (os, "rename", renamed),
        (os, "replace", renamed), (os, "link", linked), (os, "unlink", removed), (os, "rmdir", removed),
        (os, "fsync", flushed), (staging, "exchange", exchanged),
    ]:  # fmt: skip
        watch(module, name, wrapped)
    return recording


def save(folder: CheckpointFolder, step: int, value: float, *, blocking: bool = True) -> None:
    """Save a value in several files, one of them in a separate folder."""
    with folder.save(step, blocking=blocking) as stage:
        stage.write("model.safetensors", {"weight": torch.full((5,), value)})
        stage.write("optimizer.bin", {"state": {0: {"step": torch.tensor(value)}}})
        stage.write("engine/notes.json", {"value": value})
    folder.wait()


def recorded(root: Path, way: str) -> Recording:
    """Save, and record the saves after that."""
    PartialState(cpu=True)
    runs = root / "runs"
    with pytest.MonkeyPatch.context() as patch:
        if way == "replaced without exchange":
            patch.setattr(staging, "exchange", lambda one, other: False)
        folder = CheckpointFolder(runs, keep=1)
        save(folder, 1, 1.0)
        for step in range(2, 2 + NUM_SAVES) if way == "filled" else ():
            (runs / f"checkpoint_{step}").mkdir()
        recording = record(patch, root)
        for number in range(2, 2 + NUM_SAVES):
            step = 1 if way.startswith("replaced") else number
            save(folder, step, float(number), blocking=way != "background")
            recording.finish()
    return recording


def build(recording: Recording, entries: dict[tuple[int, str], int], state: State, folder: Path) -> None:
    """Write one state to an empty folder."""
    inodes = [(recording.identity(recording.root), folder)]
    while inodes:
        parent, place = inodes.pop()
        for (inode, name), child in entries.items():
            if inode == parent and child in recording.folders:
                (place / name).mkdir()
                inodes.append((child, place / name))
            elif inode == parent:
                (place / name).write_bytes(recording.content(child, state))
                os.utime(place / name, (max(0, -child), max(0, -child)))  # later files have larger numbers


def problem_of(folder: Path, *, allowed: set[float]) -> str:
    """Return what is wrong with the checkpoints in a folder; empty if a complete one of one save is found."""
    try:
        newest = find_newest(folder / "runs")
        if newest is None:
            return f"no checkpoint among {sorted(os.listdir(folder / 'runs'))}"
        check_loadable(newest, verify=True)
        checkpoint = SavedCheckpoint(newest)
        values = [
            checkpoint.read("model.safetensors")["weight"][0].item(),
            checkpoint.read("optimizer.bin")["state"][0]["step"].item(),
            checkpoint.read("engine/notes.json")["value"],
        ]
    except (CheckpointError, OSError) as error:
        return str(error)
    if len(set(values)) > 1 or values[0] not in allowed:
        return f"the values are {values}, and not one of {allowed}"
    return ""


def replay(way: str, *, num_states: int, seed: int = 0) -> tuple[int, int, list[str]]:
    """Return how many states were tried, how many of them differ, and what was wrong."""
    problems: dict[object, str] = {}
    num_tried = 0
    with tempfile.TemporaryDirectory(prefix="power-loss-") as scratch:
        root = Path(scratch).resolve() / "root"
        root.mkdir()
        recording = recorded(root, way)
        place = Path(scratch) / "state"
        for state in recording.states(random.Random(seed), num_states):
            entries = recording.tree(state.changes)
            if entries is None:
                continue
            num_tried += 1
            files = {inode for inode in entries.values() if inode not in recording.folders}
            contents = frozenset((inode, recording.content(inode, state)) for inode in files)
            allowed = recording.values_after(state.at)
            key = frozenset(entries.items()), contents, frozenset(allowed)
            if key not in problems:
                place.mkdir()
                build(recording, entries, state, place)
                problem = problem_of(place, allowed=allowed)
                problems[key] = problem and f"{way}, after call {state.at} of {recording.count}: {problem}"
                shutil.rmtree(place)
    return num_tried, len(problems), [problem for problem in problems.values() if problem]
