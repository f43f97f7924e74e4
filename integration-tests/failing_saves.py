"""A save that fails in one way: `python failing_saves.py FOLDER HOW`, on one rank or two; an error if it does wrong."""

import ctypes
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_checkpoint.listing import check_loadable, find_newest
from accel_state.errors import CheckpointError

NUMBERS_OF_CAPABILITIES = (1, 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of capability.h


def build(folder, *, num_parameters=1000):
    project = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True, total_limit=1)
    accelerator = Accelerator(cpu=True, project_config=project)
    return accelerator, accelerator.prepare(nn.Linear(num_parameters, 1))


def must_still_be_there(folder, number):
    newest = find_newest(Path(folder) / "checkpoints")
    assert newest.name == f"checkpoint_{number}", newest
    check_loadable(newest, verify=True)


def must_load(accelerator, model, value):
    with torch.no_grad():
        model.weight.fill_(-1)
    accelerator.load_state(verify=True)
    assert model.weight.unique().tolist() == [value]


def must_fail(accelerator, match):
    for blocking in (True, False):
        with pytest.raises(CheckpointError, match=match):
            accelerator.save_state() if blocking else accelerator.save_state(blocking=False).wait()


def first_save(folder):
    """Save what has the value 1, and continue with 7."""
    accelerator, model = build(folder)
    fill(model, 1)
    accelerator.save_state()
    fill(model, 7)
    return accelerator, model


def fill(model, value):
    with torch.no_grad():
        model.weight.fill_(value)


class Progress:
    """Something of the user's, which `torch.save` writes."""

    size = 1

    def state_dict(self):
        return {"losses": torch.zeros(self.size)}

    def load_state_dict(self, state):
        pass


def full_disk(folder):
    accelerator, model = build(folder)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    fill(model, 1)
    accelerator.save_state()
    fill(model, 7)
    progress.size = 1_000_000
    # Two threads write; either may meet the full disk first.
    full = r"No space left on device \(\d+ bytes are free.*"
    must_fail(accelerator, full + r"(custom_checkpoint_0.pkl|model.safetensors)")
    progress.size = 1
    accelerator._models.append(nn.Linear(1000, 1000))
    must_fail(accelerator, full + r"model(_1)?.safetensors")
    must_still_be_there(folder, 0)
    assert os.listdir(folder / "checkpoints") == ["checkpoint_0"], "something is left over"
    accelerator._models.pop()
    must_load(accelerator, model, 1)


def read_only_folder(folder):
    obey_permissions()
    accelerator, model = first_save(folder)
    (folder / "checkpoints").chmod(0o500)
    must_fail(accelerator, "PermissionError")
    must_still_be_there(folder, 0)
    must_load(accelerator, model, 1)


def permission_lost_while_writing(folder):
    """The hidden folder takes no files any more."""
    obey_permissions()
    accelerator, model = first_save(folder)
    hook = accelerator.register_save_state_pre_hook(lambda models, weights, place: os.chmod(place, 0o500))
    must_fail(accelerator, "PermissionError")
    hook.remove()
    go_on_after_loss(folder, accelerator, model)


def permission_lost_before_the_rename(folder):
    """Everything is written, and then cannot get its name, nor be removed."""
    obey_permissions()
    accelerator, model = first_save(folder)
    parent = folder / "checkpoints"
    hook = accelerator.register_save_state_pre_hook(lambda models, weights, place: parent.chmod(0o500))
    must_fail(accelerator, "PermissionError")
    hook.remove()
    go_on_after_loss(folder, accelerator, model)


def go_on_after_loss(folder, accelerator, model):
    must_still_be_there(folder, 0)
    must_load(accelerator, model, 1)
    fill(model, 7)
    parent = folder / "checkpoints"
    parent.chmod(0o700)
    for left_over in parent.glob(".tmp-*"):
        left_over.chmod(0o700)
        os.utime(left_over, (0, time.time() - 60))
    saved = accelerator.save_state()
    assert os.listdir(parent) == [Path(saved).name], "something is left over"
    must_load(accelerator, model, 7)


def permission_lost_for_the_old_one(folder):
    """The new checkpoint is there; that the old one cannot go is a warning."""
    obey_permissions()
    accelerator, model = first_save(folder)
    old = folder / "checkpoints" / "checkpoint_0"
    old.chmod(0o500)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        accelerator.save_state()
    assert any("checkpoint_0` could not be removed" in str(one.message) for one in told), told
    must_still_be_there(folder, 1)
    must_load(accelerator, model, 7)


def obey_permissions():
    """Let the permissions of files hold for root too, in this thread and those that it starts."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for number in NUMBERS_OF_CAPABILITIES:
        sets[0] &= ~(1 << number)  # the effective set
    assert libc.capset(header, sets) == 0


def a_rank_fails(folder, fail):
    """Save, and save again while ``fail`` is called on the rank that it names; return what the error tells."""
    accelerator, _ = build(folder)
    accelerator.save_state()
    accelerator.register_save_state_pre_hook(lambda *_: fail(accelerator.process_index))
    with pytest.raises(CheckpointError) as told:
        accelerator.save_state()
    must_still_be_there(folder, 0)
    return accelerator, str(told.value)


def a_rank_raises(folder):
    def fail(rank):
        if rank == 1:
            raise KeyError(f"no luck on rank {rank}")

    accelerator, told = a_rank_fails(folder, fail)
    assert "rank 1: KeyError: 'no luck on rank 1'" in told
    accelerator.wait_for_everyone()


def a_rank_is_killed(folder):
    """The others hear of it at once, not after the half hour that the process group would wait."""
    _, told = a_rank_fails(folder, lambda rank: rank == 1 and os.kill(os.getpid(), signal.SIGKILL))
    assert "Rank 1 has ended before it reached" in told


def the_rank_that_keeps_the_store_is_killed(folder):
    _, told = a_rank_fails(folder, lambda rank: rank == 0 and os.kill(os.getpid(), signal.SIGKILL))
    assert "Rank 0" in told


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[2]](Path(sys.argv[1]))
    os._exit(0)  # the group cannot be ended in good order with one of two
