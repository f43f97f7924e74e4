"""Saves that fail in one way each: `python failing_saves.py FOLDER HOW`. Ends with 0 if all is as it must be."""

import multiprocessing
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

from accel import Accelerator, InitProcessGroupKwargs, ProjectConfiguration
from accel.checkpoints.choice import check_loadable, newest_checkpoint
from accel_state.errors import CheckpointError


class Custom:
    """A registered object whose state raises, or ends the process, on request."""

    action = None

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def build(folder, num_parameters=1000):
    project = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True, total_limit=1)
    group = InitProcessGroupKwargs(timeout=timedelta(seconds=6))
    accelerator = Accelerator(cpu=True, project_config=project, kwargs_handlers=[group])
    model = nn.Linear(num_parameters, 1)
    model = accelerator.prepare(model)
    return accelerator, model


def must_still_be_there(folder, number):
    newest = newest_checkpoint(Path(folder) / "checkpoints")
    assert newest.name == f"checkpoint_{number}", newest
    check_loadable(newest, verify=True)


def full_disk(folder):
    accelerator, model = build(folder)
    accelerator.save_state()
    with torch.no_grad():
        model.weight.fill_(7)
    large = nn.Linear(1000, 1000)
    accelerator.prepare(large)
    for blocking in (True, False):
        with pytest.raises(CheckpointError, match="No space left"):
            accelerator.save_state() if blocking else accelerator.save_state(blocking=False).wait()
        must_still_be_there(folder, 0)
        assert os.listdir(Path(folder) / "checkpoints") == ["checkpoint_0"], "something is left over"


def rank_main(rank, folder, how, port):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    accelerator, _ = build(folder)
    accelerator.save_state()

    def hook(models, weights, output_dir):
        if rank == 1:
            if how == "a-rank-raises":
                raise KeyError("no luck on rank one")
            os.kill(os.getpid(), signal.SIGKILL)

    accelerator.register_save_state_pre_hook(hook)
    try:
        accelerator.save_state()
    except CheckpointError as error:
        Path(folder, f"told-{rank}").write_text(str(error))


def failing_rank(folder, how):
    from save_forever import free_port

    context = multiprocessing.get_context("spawn")
    port = free_port()
    ranks = [context.Process(target=rank_main, args=(rank, folder, how, port)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    expected = (0, 1) if how == "a-rank-raises" else (0,)
    for rank in ranks:
        rank.join(timeout=40)
    told = {rank: file.read_text() for rank in (0, 1) if (file := Path(folder, f"told-{rank}")).exists()}
    assert sorted(told) == list(expected), told
    reason = "no luck on rank one" if how == "a-rank-raises" else "Rank 1 did not come"
    assert all(reason in message for message in told.values()), told
    must_still_be_there(folder, 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2] == "full-disk":
        full_disk(sys.argv[1])
    else:
        failing_rank(sys.argv[1], sys.argv[2])
