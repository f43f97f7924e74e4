import os
import threading

import pytest
import torch

from accel_checkpoint import CheckpointFolder
from accel_checkpoint.progress import progress_bar
from accel_checkpoint.saving import saver, transaction
from accel_checkpoint.saving.pending_files import write_files
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_state import PartialState
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")


def fail_to_copy(buffers, content):
    raise RuntimeError("the device does not answer")


def save_with_copies_failing_on(rank, folder):
    checkpoints = CheckpointFolder(folder)
    is_failing = PartialState().process_index == rank
    with pytest.MonkeyPatch.context() as patch:
        if is_failing:
            patch.setattr(HostBuffers, "snapshot", fail_to_copy)
        with checkpoints.save(1, blocking=False) as stage:
            stage.write(f"{PartialState().process_index}.safetensors", {"weight": torch.ones(3)}, rank=None)
        error = stage.handle.exception()
    with checkpoints.save(2) as stage:
        stage.write("model.safetensors", {"weight": torch.ones(3)})
    return type(error), str(error)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_snapshot_that_one_device_does_not_complete_fails_the_save_on_every_rank(world, tmp_path, rank):
    outcomes = world(2).run(save_with_copies_failing_on, rank, str(tmp_path))
    reason = f"was not saved (rank {rank}: RuntimeError: the device does not answer)"
    assert [(kind, reason in message) for kind, message in outcomes] == [(CheckpointError, True)] * 2
    assert os.listdir(tmp_path) == ["checkpoint_2"]


@pytest.mark.parametrize("quiet_s", [0, 20])
def test_who_waits_long_for_a_save_in_the_background_sees_how_much_is_written(
    tmp_path, monkeypatch, capsys, quiet_s
):
    pytest.importorskip("tqdm")
    PartialState(cpu=True)
    is_waiting = threading.Event()

    def bar(label, *, is_shown):
        is_waiting.set()
        return progress_bar(label, is_shown=is_shown, quiet_s=quiet_s)

    monkeypatch.setattr(saver, "progress_bar", bar)

    def write_late(*args, **options):
        is_waiting.wait(20)
        return write_files(*args, **options)

    monkeypatch.setattr(transaction, "write_files", write_late)
    folder = CheckpointFolder(tmp_path)
    with folder.save(1, blocking=False) as stage:
        stage.write("model.safetensors", {"weight": torch.ones(5 * 2**18)})
    folder.wait()
    assert ("Saving checkpoint_1" in capsys.readouterr().err) == (quiet_s == 0)
