"""Save twice, and be interrupted in the second save, at the call into the file system of a given number.

`forking.Runs` requests the runs. `PROJECT/outcome` says afterwards at which call it was, what was raised, and what a
further save came to; a killed run leaves none.
"""

import io
import json
import os
import signal
import warnings
from pathlib import Path

import torch
from forking import serve
from save_forever import fill, note
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_checkpoint.saving import staging
from accel_state.errors import CheckpointError

CHANGING = ["mkdir", "rename", "replace", "unlink", "rmdir", "link", "fsync"]
"""What changes names on the disk, or says that bytes are there; opening for writing and writing come to it."""


class Interruption:
    """Count the calls from `arm` on, and do something before the one of the number ``at``."""

    def __init__(self, at, act, *, counts_writes):
        self.at, self.act, self.count, self.hit = at, act, None, None
        for name in [*CHANGING, *(["write"] if counts_writes else [])]:
            self._watch(os, name)
        self._watch(os, "open", lambda path, flags, *_, **__: flags & (os.O_WRONLY | os.O_RDWR))
        self._watch(io, "open", lambda path, mode="r", *_, **__: not mode.startswith("r"))
        self._watch(staging, "exchange")

    def arm(self):
        self.count = 0

    def _watch(self, module, name, is_meant=lambda *_, **__: True):
        real = getattr(module, name)

        def watched(*args, **options):
            if self.count is not None and is_meant(*args, **options):
                self.count += 1
                if self.count == self.at:
                    self.hit = name
                    self.act()
            return real(*args, **options)

        setattr(module, name, watched)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise OSError("the disk does not answer")


def press_ctrl_c():
    raise KeyboardInterrupt


ACTS = {"kill": die, "error": fail, "ctrl-c": press_ctrl_c}


def save_and_be_interrupted(*, project, at, how, behind, name, counts_writes):
    """Save under numbers, or where ``name`` is given, over and over under that."""
    project = Path(project)
    folders = ProjectConfiguration(project_dir=str(project), automatic_checkpoint_naming=name is None)
    folders.total_limit = 1 if name is None else None
    accelerator = Accelerator(cpu=True, project_config=folders)
    model = nn.Linear(20, 20)
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    place = None if name is None else project / "checkpoints" / name
    interruption = Interruption(at, ACTS[how], counts_writes=counts_writes)

    def ask():
        number = int((project / "asked").read_text()) + 1 if (project / "asked").exists() else 0
        fill(model, number)
        note(project / "asked", number)

    if (project / "checkpoints").is_dir():
        accelerator.load_state(place)
    ask()
    accelerator.save_state(place)
    ask()
    raised = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interruption.arm()
        try:
            saved = accelerator.save_state(place, blocking=not behind)
            if behind:
                saved.wait()
        except (CheckpointError, OSError, KeyboardInterrupt) as error:
            raised = type(error).__name__
        interruption.count = None
    outcome = {"hit": interruption.hit, "raised": raised, "left": sorted(os.listdir(project / "checkpoints"))}
    ask()
    accelerator.save_state(place)
    accelerator.load_state(place, verify=True)
    (project / "outcome").write_text(json.dumps(outcome))


if __name__ == "__main__":
    serve(save_and_be_interrupted)
