import os

import pytest
import torch

from accel_checkpoint import CheckpointFolder
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_state import PartialState
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")


def fail_to_copy(buffers):
    raise RuntimeError("the device does not answer")


def save_with_copies_failing_on(rank, folder, *, at):
    checkpoints = CheckpointFolder(folder)
    is_failing = PartialState().process_index == rank
    with pytest.MonkeyPatch.context() as patch:
        if is_failing:
            patch.setattr(HostBuffers, at, fail_to_copy)
        with checkpoints.save(1, blocking=False) as stage:
            stage.write("model.safetensors", {"weight": torch.ones(3)})
        error = stage.handle.exception()
    with checkpoints.save(2) as stage:
        stage.write("model.safetensors", {"weight": torch.ones(3)})
    return type(error), str(error)


@pytest.mark.parametrize(("rank", "at"), [(0, "wait"), (1, "wait"), (1, "join_streams")])
def test_a_snapshot_that_one_device_does_not_complete_fails_the_save_on_every_rank(world, tmp_path, rank, at):
    outcomes = world(2).run(save_with_copies_failing_on, rank, str(tmp_path), at=at)
    reason = f"was not saved (rank {rank}: RuntimeError: the device does not answer)"
    assert [(kind, reason in message) for kind, message in outcomes] == [(CheckpointError, True)] * 2
    assert os.listdir(tmp_path) == ["checkpoint_2"]
