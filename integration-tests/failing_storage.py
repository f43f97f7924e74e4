"""Save again and again, each time with one call into the file system that fails.

After each fault every rank must have raised an error that names it, or all must have saved; the earlier checkpoint is
whole; and the next save works, after which no temporary folder is left.

Each rank gets the options of `fail_saves` as JSON. `PROJECT/outcome` has afterwards how many calls failed, and what
was wrong then.
"""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import random
import stat
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.manifest import read_manifest
from accel_checkpoint.saving import staging
from accel_state.errors import AccelError

CHANGING = ("mkdir", "rename", "replace", "link", "fsync", "write")
NONSENSE = ("enforce fail", "unexpected pos")


class Faults:
    """Fail calls that change the file system below a folder, from the call of a number on."""

    def __init__(self, folder):
        self.folder, self.at, self.count, self.hit = str(folder), None, 0, None
        for name in CHANGING:
            self._watch(os, name)
        self._watch(os, "open", lambda path, flags, *_, **__: flags & (os.O_WRONLY | os.O_RDWR))
        self._watch(io, "open", lambda path, mode="r", *_, **__: not mode.startswith("r"))
        self._watch(staging, "exchange")
        self._watch(os, "close", lambda file: self.how == "once" and stat.S_ISREG(os.fstat(file).st_mode))

    def arm(self, at, *, error, how):
        self.at, self.error, self.how, self.count, self.hit = at, getattr(errno, error), how, 0, None

    def disarm(self):
        self.at = None

    def _watch(self, module, name, is_meant=lambda *_, **__: True):
        real = getattr(module, name)

        def watched(*args, **options):
            if self.at is not None and is_meant(*args, **options) and self._is_below(args[0]):
                self.count += 1
                if self.count == self.at or (self.how == "onward" and self.count > self.at):
                    self.hit = self.hit or name
                    if name == "close":
                        real(*args, **options)  # the descriptor is gone all the same
                    raise OSError(self.error, os.strerror(self.error), str(args[0]))
            return real(*args, **options)

        setattr(module, name, watched)

    def _is_below(self, path):
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        return os.fspath(path).startswith(self.folder)


def fail_saves(*, project, mode, error, how, sample):
    """Fail ``sample`` calls on each rank; rank 0 writes what was wrong to `PROJECT/outcome`."""
    project, is_numbered = Path(project), mode != "replace"
    place = project / ("checkpoints" if is_numbered else ".")
    folders = ProjectConfiguration(project_dir=str(project), automatic_checkpoint_naming=is_numbered)
    folders.total_limit = 2 if is_numbered else None
    accelerator = Accelerator(cpu=True, project_config=folders)
    model = nn.Linear(8, 8)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.backward(model(torch.ones(2, 8)).sum())
    optimizer.step()
    rank, num_ranks, values = accelerator.process_index, accelerator.num_processes, itertools.count(1.0)
    faults = Faults(project)

    def save():
        value = next(values)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        try:
            target = None if is_numbered else project / "last"
            saved = accelerator.save_state(target, blocking=mode != "background")
            if mode == "background":
                saved.wait()
        except (AccelError, OSError) as raised:
            return value, str(raised)
        return value, None

    def together(text):
        texts = [None] * num_ranks
        dist.all_gather_object(texts, text)
        return texts

    warnings.simplefilter("ignore")
    save()
    chance, problems, num_cases = random.Random(f"1{mode}{error}{how}"), [], 0
    for victim in range(num_ranks):
        faults.arm(10**9, error=error, how=how)
        save()
        num_calls = together(faults.count)[victim]
        faults.disarm()
        for at in sorted(chance.sample(range(1, num_calls + 1), min(sample, num_calls))):
            before = together(values_in(place) if rank == 0 else None)[0]
            if rank == victim:
                faults.arm(at, error=error, how=how)
            value, raised = save()
            hit = faults.hit if rank == victim else None
            faults.disarm()
            hit, texts = together(hit)[victim], together(raised)
            if hit is None:
                break
            num_cases += 1
            after = together(values_in(place) if rank == 0 else None)[0]
            case = f"{mode}, {error} {how} at `{hit}`, call {at} of rank {victim}: {texts}, {after}"
            problems += [f"{case}: {one}" for one in wrong(value, before, after, texts, error)]
            value, raised = save()
            texts, left = together(raised), [name for name in os.listdir(place) if name.startswith(".tmp")]
            if any(texts) or value not in values_in(place).values() or (rank == 0 and left):
                problems.append(f"{case}: the next save: {texts}, left over: {left}")
    if rank == 0:
        (project / "outcome").write_text(json.dumps({"cases": num_cases, "problems": problems}))


def wrong(value, before, after, texts, error):
    """Yield what is wrong after a fault; ``before`` and ``after`` are the values of the checkpoints by their names."""
    is_there = value in after.values()
    reasons = [text for text in texts if text is not None]
    if len(reasons) not in (0, len(texts)):
        yield "some ranks raise, others do not"
    if reasons and not all(os.strerror(getattr(errno, error)) in text for text in reasons):
        yield "the fault is not named"
    if any(nonsense in text for nonsense in NONSENSE for text in reasons):
        yield "the error does not say what has happened"
    if any(isinstance(one, str) for one in after.values()):
        yield "a checkpoint is damaged"
    if not reasons and not is_there:
        yield "the checkpoint is not there"
    may_be_there = any(words in text for words in ("is saved, but", "may be saved") for text in reasons)
    if reasons and is_there and not may_be_there:
        yield "the checkpoint is there all the same"
    if not is_there and after != before:
        yield "an earlier checkpoint has changed"


def values_in(place):
    found = {}
    for folder in place.iterdir():
        if folder.is_dir() and not folder.name.startswith("."):
            problems = SavedFiles(folder, read_manifest(folder).files_here).problems(digests=True)
            found[folder.name] = (
                str(problems) if problems else load_file(folder / "model.safetensors")["bias"][0].item()
            )
    return found


if __name__ == "__main__":
    fail_saves(**json.loads(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # taking torch apart takes half a second
