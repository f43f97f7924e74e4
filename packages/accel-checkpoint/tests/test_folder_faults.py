"""Whichever call into the file system is the last of a save, or fails, a complete checkpoint is there."""

import io
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from accel_checkpoint import CheckpointFolder
from accel_checkpoint.saving import staging
from accel_state import PartialState
from accel_state.errors import CheckpointError

pytestmark = [
    pytest.mark.usefixtures("fresh_state"),
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and signals as Linux has them"),
]

CHANGING = ["mkdir", "rename", "replace", "unlink", "rmdir", "link", "fsync", "write"]


def fail():
    raise OSError("the disk does not answer")


def interrupt():
    raise KeyboardInterrupt


ACTS = {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "error": fail, "ctrl-c": interrupt}


class Interruption:
    """Do something before the call of the number ``at``; after that, all calls are as usual."""

    def __init__(self, patch, at, act):
        self.at, self.act, self.count = at, act, 0
        for name in CHANGING:
            self._watch(patch, os, name)
        self._watch(patch, os, "open", lambda path, flags, *_, **__: flags & (os.O_WRONLY | os.O_RDWR))
        self._watch(patch, io, "open", lambda path, mode="r", *_, **__: not mode.startswith("r"))
        self._watch(patch, staging, "exchange")

    @property
    def has_happened(self):
        return self.count >= self.at

    def _watch(self, patch, module, name, is_meant=lambda *_, **__: True):
        real = getattr(module, name)

        def watched(*args, **options):
            if is_meant(*args, **options):
                self.count += 1
                if self.count == self.at:
                    self.act()
            return real(*args, **options)

        patch.setattr(module, name, watched)


@pytest.fixture
def runs():
    """A folder in memory where there is one: no machine is lost here, and flushes of a disk take their time."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder) / "runs"


def save(folder, step, *, blocking):
    with folder.save(step, blocking=blocking) as stage:
        stage.write("model.safetensors", {"value": torch.full((50,), float(step))})
        stage.write("state.bin", {"value": step})
    folder.wait()


def in_child(work):
    """Return the status with which a fork that does ``work`` has ended."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(work())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("how", "replaces", "blocking", "exchanges"),
    [
        pytest.param(
            how,
            replaces,
            blocking,
            exchanges,
            id=f"{how}-{['new', 'same'][replaces]}-{['behind', 'blocking'][blocking]}{['-moved', ''][exchanges]}",
        )
        for how, replaces, blocking, exchanges in [
            ("kill", False, True, True),
            ("kill", True, False, True),
            ("kill", True, True, False),
            ("error", False, True, True),
            ("error", True, False, True),
            ("ctrl-c", True, True, True),
        ]
    ],
)
def test_a_checkpoint_is_complete_whichever_call_is_the_last(
    runs, monkeypatch, how, replaces, blocking, exchanges
):
    PartialState(cpu=True)
    if not exchanges:  # as on systems that cannot exchange two folders
        monkeypatch.setattr(staging, "exchange", lambda one, other: False)
    folder = CheckpointFolder(runs, keep=1)
    step, at = 1, 0
    save(folder, step, blocking=True)
    while True:
        at += 1
        new = step if replaces else step + 1

        def interrupted(at=at, new=new):
            folder = CheckpointFolder(runs, keep=1)  # with a token of its own, as a new process has
            with pytest.MonkeyPatch.context() as patch:
                interruption = Interruption(patch, at, ACTS[how])
                try:
                    save(folder, new, blocking=blocking)
                except (OSError, CheckpointError, KeyboardInterrupt):
                    return 1
                return 2 if interruption.has_happened else 0  # what only tidies up may fail without a word

        code = in_child(interrupted)
        assert code == -signal.SIGKILL if how == "kill" and code < 0 else code in (0, 1, 2)
        newest = CheckpointFolder(runs).newest()
        newest.verify()
        if how == "error":
            assert newest.path.name == f"checkpoint_{newest.step}"  # what was moved aside is back
        assert newest.step in (step, new)
        assert newest.read("state.bin") == {"value": newest.step}
        assert newest.read("model.safetensors")["value"].unique().tolist() == [newest.step]
        step = newest.step
        if code == 0:
            break
    assert at > 10  # else the calls were not seen
    save(folder, step + 1, blocking=True)  # which tidies up after all that were killed
    assert os.listdir(runs) == [f"checkpoint_{step + 1}"]
