"""Fail each call that reads a checkpoint, one after the other.

After each fault a load has either loaded the newest checkpoint, or raised an error that names the error of the system
and does not call the checkpoint damaged, incomplete or missing. Nothing older is loaded.
"""

import builtins
import errno
import io
import itertools
import os
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_state.errors import CheckpointError

MISNOMERS = ("damaged", "incomplete", "missing", "Copy or save it again", "no checkpoint", "cut short")


class FailingCalls:
    """Raises ESTALE at the call of a given number that reads something below ``root``."""

    def __init__(self, root):
        self.root, self.at, self.count, self.what = str(root), 0, 0, ""
        for name in ("stat", "lstat", "listdir", "scandir", "open"):
            setattr(os, name, self._watched(getattr(os, name)))
        io.open = builtins.open = self._open

    def arm(self, at):
        self.at, self.count, self.what = at, 0, ""

    def hit(self, name, path):
        if not self.at or not isinstance(path, (str, os.PathLike)):
            return
        if not os.fspath(path).startswith(self.root):
            return
        self.count += 1
        if self.count == self.at:
            self.what = f"{name} {path}"
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), os.fspath(path))

    def _watched(self, real):
        def call(path=".", *args, **options):
            self.hit(real.__name__, path)
            return real(path, *args, **options)

        return call

    def _open(self, file, mode="r", buffering=-1, *args, **options):
        self.hit("open", file)
        if not self.at or mode != "rb" or not isinstance(file, (str, os.PathLike)):
            return self.real_open(file, mode, buffering, *args, **options)
        raw = FailingFile(self, file)
        return raw if buffering == 0 else io.BufferedReader(raw)

    real_open = staticmethod(io.open)


class FailingFile(io.FileIO):
    """A file each read of which is one of the calls."""

    def __init__(self, calls, path):
        super().__init__(path)
        self._calls, self._path = calls, path

    def _hit(self, name):
        try:
            self._calls.hit(name, self._path)
        except OSError as error:
            raise OSError(error.errno, error.strerror) from None  # reads do not know the path

    def read(self, size=-1):
        self._hit("read")
        return super().read(size)

    def readall(self):
        self._hit("read")
        return super().readall()

    def readinto(self, buffer):
        self._hit("read")
        return super().readinto(buffer)


def problems(folder):
    """Return the number of calls that failed, and one line for each load that went wrong."""
    project = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    model = nn.Linear(8, 8)
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2)
    model, *held = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    accelerator.backward(model(torch.ones(2, 8)).sum())
    held[0].step()
    for value in (1, 2):
        fill(model, value)
        accelerator.save_state()
    calls, wrong = FailingCalls(folder), []
    for at in itertools.count(1):
        fill(model, -1)
        outcome = one_load(accelerator, calls, at)
        if not calls.what:
            return at - 1, wrong
        values = {value for one in model.parameters() for value in one.flatten().tolist()}
        is_named = os.strerror(errno.ESTALE) in outcome
        if outcome == "" and values == {2}:
            continue
        if outcome == "" or not is_named or any(word in outcome for word in MISNOMERS):
            wrong.append(f"{calls.what}: {outcome or f'loaded {values}'}")


def one_load(accelerator, calls, at):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls.arm(at)
        try:
            accelerator.load_state()
        except (CheckpointError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            calls.at = 0
    return ""


def fill(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def main():
    with tempfile.TemporaryDirectory() as folder:
        total, wrong = problems(Path(folder).resolve())
    print(*wrong, f"{total} calls failed, {len(wrong)} of them with a wrong outcome", sep="\n")
    return 1 if wrong or total < 20 else 0


if __name__ == "__main__":
    raise SystemExit(main())
