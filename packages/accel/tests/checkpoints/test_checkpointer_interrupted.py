"""Interrupts at every line of a save, and files that vanish before every call: a checkpoint can always be loaded.

The suite takes a sample of both. ``ACCEL_TEST_FAULT_STEP=1 pytest <this file>`` tries all, and 10 every tenth.
"""

import os
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from accel import Accelerator, ProjectConfiguration
from accel_checkpoint.listing import State, check_loadable, checkpoints_in
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")
FAULT_STEP = int(os.environ.get("ACCEL_TEST_FAULT_STEP", "0"))
TRACED = ("/accel_checkpoint/", "/accel/checkpoints/")


class Interrupt(BaseException):
    """As raised by the handler of a signal."""


class Run:
    """A run that keeps one checkpoint only: numbered with ``total_limit=1``, or one folder that is replaced."""

    def __init__(self, root, *, is_numbered, is_blocking):
        self.root, self.is_numbered, self.is_blocking = Path(root), is_numbered, is_blocking
        limit = 1 if is_numbered else None
        project = ProjectConfiguration(
            project_dir=str(root), automatic_checkpoint_naming=is_numbered, total_limit=limit
        )
        self.accelerator = Accelerator(cpu=True, project_config=project)
        model = torch.nn.Linear(2, 1)
        self.model, self.optimizer = self.accelerator.prepare(model, torch.optim.SGD(model.parameters()))
        self.folder = self.root / "checkpoints" if is_numbered else self.root

    @property
    def target(self):
        return None if self.is_numbered else self.root / "latest"

    def save(self):
        return self.accelerator.save_state(self.target, blocking=self.is_blocking)

    def save_and_wait(self):
        done = self.save()
        if not self.is_blocking:
            done.wait()

    def check(self):
        """Check that what is there is complete, and that it can be loaded."""
        checkpoints = checkpoints_in(self.folder)
        assert [one.problem for one in checkpoints if one.state is not State.COMMITTED] == []
        assert checkpoints
        for one in checkpoints:
            check_loadable(one.path, verify=True)

    def load(self):
        self.accelerator.load_state(self.target)


def wait_for_threads():
    """Wait until the saves in the background have ended, also those of which no handle was returned."""
    for thread in threading.enumerate():
        if thread.name.startswith("save-"):
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def interrupt_at(number):
    """Raise at the line of that number that this thread runs in the block; yields where, and how many there were."""
    seen = {"lines": 0, "where": ""}

    def local(frame, event, arg):
        if event == "line":
            seen["lines"] += 1
            if seen["lines"] == number:
                seen["where"] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                raise Interrupt
        return local

    def tracer(frame, event, arg):
        return local if any(part in frame.f_code.co_filename for part in TRACED) else None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield seen
    except Interrupt:
        pass
    finally:
        sys.settrace(before)


def sample(total, *, size, first=1):
    """Return about ``size`` of the numbers from ``first`` to ``total``, or every `FAULT_STEP`-th."""
    return range(first, total + 1, FAULT_STEP or max(total // size, 1))


@pytest.mark.parametrize("is_numbered", [True, False], ids=["numbered", "replaced"])
@pytest.mark.parametrize("is_blocking", [True, False], ids=["blocking", "behind"])
def test_an_interrupt_at_any_line_leaves_a_complete_checkpoint(tmp_path, is_blocking, is_numbered):
    run = Run(tmp_path, is_numbered=is_numbered, is_blocking=is_blocking)
    run.save_and_wait()
    run.save_and_wait()
    with interrupt_at(0) as seen:
        run.save_and_wait()
    for number in sample(seen["lines"], size=5, first=7):
        with interrupt_at(number) as at:
            run.save()
        wait_for_threads()
        try:
            run.check()
            run.save_and_wait()
        except Exception as error:
            raise AssertionError(f"Interrupted at line {number}, {at['where']}") from error
    run.check()
    run.load()
    # One line between the two halves of `with` leaves a folder until the process ends.
    assert len([name for name in os.listdir(run.folder) if name.startswith(".tmp-")]) <= 1


@pytest.mark.parametrize("is_numbered", [True, False], ids=["numbered", "replaced"])
def test_an_interrupt_while_the_thread_starts_leaves_the_save_to_it(tmp_path, monkeypatch, is_numbered):
    run = Run(tmp_path, is_numbered=is_numbered, is_blocking=False)
    run.save_and_wait()
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        if thread.name.startswith("save-"):
            raise Interrupt

    with monkeypatch.context() as patch, pytest.raises(Interrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        run.save()
    wait_for_threads()
    run.check()
    if is_numbered:
        assert [one.number for one in checkpoints_in(run.folder)] == [1]
    run.save_and_wait()
    run.load()


def test_an_interrupt_before_the_thread_starts_leaves_nothing(tmp_path, monkeypatch):
    run = Run(tmp_path, is_numbered=True, is_blocking=False)
    run.save_and_wait()

    def interrupted(thread):
        raise Interrupt

    with monkeypatch.context() as patch, pytest.raises(Interrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        run.save()
    assert os.listdir(run.folder) == ["checkpoint_0"]
    run.save_and_wait()
    run.check()


# What a save calls that changes a folder, or makes what is in it durable.
CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "utime")


@contextmanager
def files_vanish(folder, monkeypatch, *, before, kind):
    """Remove a file of the temporary folder, or all of it, before the call of that number; yields what was done."""
    seen = {"calls": 0, "removed": ""}
    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, vanishing(getattr(os, name), folder, seen, before=before, kind=kind))
        yield seen


def vanishing(real, folder, seen, *, before, kind):
    unlink = os.unlink if not hasattr(os.unlink, "real") else os.unlink.real

    def call(*args, **kwargs):
        seen["calls"] += 1
        if seen["calls"] == before:
            for path in Path(folder).glob(".tmp-checkpoint_*" if kind != "latest" else ".tmp-latest-*"):
                for file in sorted(path.glob("*"))[: None if kind == "all" else 1]:
                    seen["removed"] += f" {file.name}"
                    unlink(file)
        return real(*args, **kwargs)

    call.real = real
    return call


@pytest.mark.parametrize(
    ("kind", "is_blocking"),
    [("first", True), ("all", False), ("latest", True)],
    ids=["one", "all", "replaced"],
)
def test_files_that_vanish_before_any_call_leave_a_complete_checkpoint(
    tmp_path, monkeypatch, kind, is_blocking
):
    run = Run(tmp_path, is_numbered=kind != "latest", is_blocking=is_blocking)
    run.save_and_wait()
    run.save_and_wait()
    with files_vanish(run.folder, monkeypatch, before=0, kind=kind) as seen:
        run.save_and_wait()
    refused = []
    for number in sample(seen["calls"], size=5):
        with files_vanish(run.folder, monkeypatch, before=number, kind=kind) as seen:
            try:
                run.save_and_wait()
            except CheckpointError as error:
                refused.append(str(error))
        run.check()
        run.save_and_wait()
    assert refused
    assert all("was not saved" in text for text in refused)
    run.load()


def test_a_file_that_vanishes_after_the_rename_undoes_it(tmp_path, monkeypatch):
    for is_numbered in (True, False):
        run = Run(tmp_path / str(is_numbered), is_numbered=is_numbered, is_blocking=True)
        run.save_and_wait()
        before = checkpoints_in(run.folder)
        real = os.fsync
        renamed = run.folder / ("checkpoint_1" if is_numbered else "latest") / "model.safetensors"
        inode = renamed.exists() and renamed.stat().st_ino

        def fsync(descriptor, real=real, renamed=renamed, inode=inode):
            if renamed.exists() and renamed.stat().st_ino != inode:
                renamed.unlink()
            return real(descriptor)

        with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="was not saved.*model"):
            patch.setattr(os, "fsync", fsync)
            run.save()
        assert [(one.path, one.token) for one in checkpoints_in(run.folder)] == [
            (one.path, one.token) for one in before
        ]
        run.save_and_wait()
        run.load()


@contextmanager
def interrupt_in(function):
    """Raise as soon as this thread calls the function of that name in the block."""

    def tracer(frame, event, arg):
        if frame.f_code.co_name == function and any(part in frame.f_code.co_filename for part in TRACED):
            sys.settrace(None)
            raise Interrupt

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield
    except Interrupt:
        pass
    finally:
        sys.settrace(before)


PLACES = ("_begin", "files_to_save", "_snapshot", "start", "write_files", "commit", "remove_old", "release")


def save_with_interrupts_on(rank, root, is_numbered, is_blocking):
    """Interrupt the saves of one rank, in one place after the other; all ranks continue to the next save."""
    run = Run(root, is_numbered=is_numbered, is_blocking=is_blocking)
    run.save_and_wait()
    is_here = run.accelerator.process_index == rank
    for place in PLACES:
        with interrupt_in(place if is_here else ""):
            with suppress(CheckpointError):  # which reports the interrupt of the other rank
                run.save()
        wait_for_threads()
        run.accelerator.wait_for_everyone()
        run.check()
        run.accelerator.wait_for_everyone()
    run.save_and_wait()
    run.load()
    return run.accelerator.gather(torch.tensor([run.accelerator.process_index])).tolist()


@pytest.mark.parametrize(
    ("rank", "is_numbered", "is_blocking"),
    [(1, True, False), (0, True, False), (0, False, True), (1, False, True)],
)
def test_an_interrupt_on_one_of_two_ranks_leaves_a_complete_checkpoint(
    world, tmp_path, rank, is_numbered, is_blocking
):
    results = world(2).run(save_with_interrupts_on, rank, str(tmp_path), is_numbered, is_blocking)
    assert results == [[0, 1]] * 2
