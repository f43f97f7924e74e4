"""Saves that fail in one way each: `python failing_saves.py FOLDER HOW…`.

Each way is tried in a separate process. `FOLDER/HOW.log` states what was not as it must be, and is empty if all was.
"""

import ctypes
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from forking import hold_port, warm_up
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_checkpoint.listing import check_loadable, find_newest
from accel_state.errors import CheckpointError

LIMIT_S = 60
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


class Ranks:
    """Two processes as a launcher would start them, without one that watches them."""

    def __init__(self, folder, how):
        self.folder, self.holder = folder, hold_port()
        port = self.holder.getsockname()[1]
        self.pids = [fork(lambda rank=rank: rank_main(rank, folder, how, port)) for rank in (0, 1)]

    def told(self):
        """Return what the ranks that raised received, when all have ended."""
        end = time.monotonic() + LIMIT_S
        for pid in self.pids:
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                assert time.monotonic() < end, "a rank waits on"
                time.sleep(0.02)
        self.holder.close()
        files = {rank: self.folder / f"told-{rank}" for rank in (0, 1)}
        return {rank: file.read_text() for rank, file in files.items() if file.exists()}


def rank_main(rank, folder, how, port):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    accelerator, _ = build(folder)
    accelerator.save_state()

    def hook(models, weights, output_dir):
        if how == f"rank-{rank}-raises":
            raise KeyError(f"no luck on rank {rank}")
        if how == f"rank-{rank}-is-killed":
            os.kill(os.getpid(), signal.SIGKILL)

    accelerator.register_save_state_pre_hook(hook)
    try:
        accelerator.save_state()
    except CheckpointError as error:
        Path(folder, f"told-{rank}").write_text(str(error))
    if how.endswith("raises"):
        accelerator.wait_for_everyone()
    os._exit(0)  # the group cannot be ended in good order with one of two


def a_rank_raises(folder):
    told = Ranks(folder, "rank-1-raises").told()
    assert sorted(told) == [0, 1], told
    assert all("rank 1: KeyError: 'no luck on rank 1'" in message for message in told.values()), told
    must_still_be_there(folder, 0)


def a_rank_is_killed(folder):
    """The others hear of it at once, not after the half hour that the process group would wait."""
    told = Ranks(folder, "rank-1-is-killed").told()
    assert list(told) == [0], told
    assert "Rank 1 has ended before it reached" in told[0], told
    must_still_be_there(folder, 0)


def the_rank_that_keeps_the_store_is_killed(folder):
    told = Ranks(folder, "rank-0-is-killed").told()
    assert list(told) == [1], told
    assert "Rank 0" in told[1], told
    must_still_be_there(folder, 0)


WAYS = {
    way.__name__.replace("_", "-"): way
    for way in (
        full_disk,
        read_only_folder,
        permission_lost_while_writing,
        permission_lost_before_the_rename,
        permission_lost_for_the_old_one,
        a_rank_raises,
        a_rank_is_killed,
        the_rank_that_keeps_the_store_is_killed,
    )
}


def fork(body):
    """Run ``body`` in a fork of this process, and return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        body()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def try_way(folder, how):
    log = folder / f"{how}.log"

    def body():
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
        (folder / how).mkdir()
        WAYS[how](folder / how)

    code = os.waitstatus_to_exitcode(os.waitpid(fork(body), 0)[1])
    if code == 0:
        log.write_text("")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm_up()
    for name in sys.argv[2:]:
        try_way(Path(sys.argv[1]), name)
