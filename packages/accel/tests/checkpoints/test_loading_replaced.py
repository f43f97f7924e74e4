"""A load is of one save, even if another job replaces the checkpoint meanwhile."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from accel import Accelerator
from accel_checkpoint.file_names import MANIFEST_NAME
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")


class Watched(nn.Linear):
    """A model that calls `meanwhile` when its state is looked at: its file is open then, the optimizer's is not."""

    def meanwhile(self):
        pass

    def state_dict(self, *args, **kwargs):
        self.meanwhile()
        return super().state_dict(*args, **kwargs)


def build(*, num_models=1):
    accelerator = Accelerator(cpu=True)
    models = [Watched(3, 2) for _ in range(num_models)]
    optimizer = torch.optim.SGD(
        [one for model in models for one in model.parameters()], lr=0.1, momentum=0.9, foreach=True
    )
    *models, optimizer = accelerator.prepare(*models, optimizer)
    accelerator.backward(sum(model(torch.ones(1, 3)).sum() for model in models))
    optimizer.step()
    return accelerator, models, optimizer


def fill(models, optimizer, value):
    with torch.no_grad():
        for parameter in (one for model in models for one in model.parameters()):
            parameter.fill_(value)
            optimizer.state[parameter]["momentum_buffer"].fill_(value)


def values_of(models, optimizer):
    parameters = [one for model in models for one in model.parameters()]
    momenta = [one["momentum_buffer"] for one in optimizer.optimizer.state.values()]
    return sorted({value for one in [*parameters, *momenta] for value in one.flatten().tolist()})


def save_copies(accelerator, models, optimizer, folder, *, num, **options):
    """Save the values 0 to ``num``, and put the first in place."""
    for value in range(num + 1):
        fill(models, optimizer, value)
        accelerator.save_state(folder / f"save_{value}", **options)
    (folder / "save_0").rename(folder / "latest")
    fill(models, optimizer, -1)


class OtherJob:
    """Replaces `latest` by the next save, as many times as there are saves."""

    def __init__(self, folder):
        self.folder, self.num = folder, 0

    def __call__(self, *_):
        following = self.folder / f"save_{self.num + 1}"
        if following.is_dir():
            self.num += 1
            (self.folder / "latest").rename(self.folder / f".tmp-{self.num}")
            following.rename(self.folder / "latest")
            shutil.rmtree(self.folder / f".tmp-{self.num}")


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("num", [1, 2])
def test_a_load_begins_again_when_the_checkpoint_is_replaced(tmp_path, num, verify):
    accelerator, models, optimizer = build()
    save_copies(accelerator, models, optimizer, tmp_path, num=num)
    models[0].meanwhile = OtherJob(tmp_path)
    accelerator.load_state(tmp_path / "latest", verify=verify)
    assert models[0].meanwhile.num == num
    assert values_of(models, optimizer) == [num]


def test_a_load_that_is_replaced_each_time_is_an_error_and_changes_nothing(tmp_path):
    accelerator, models, optimizer = build()
    save_copies(accelerator, models, optimizer, tmp_path, num=4)
    models[0].meanwhile = OtherJob(tmp_path)
    with pytest.raises(
        CheckpointError, match="latest` was not loaded, since another save replaces it. Load a"
    ):
        accelerator.load_state(tmp_path / "latest")
    assert models[0].meanwhile.num == 3
    assert values_of(models, optimizer) == [-1]


@pytest.mark.parametrize("way", ["sharded", "hook"])
def test_what_is_read_late_is_of_the_same_save(tmp_path, way):
    """Shards are opened when they are copied, and hooks read files before the others are opened."""
    accelerator, models, optimizer = build(num_models=2)
    save_copies(
        accelerator,
        models,
        optimizer,
        tmp_path,
        num=1,
        checkpoint_format="sharded" if way == "sharded" else None,
    )
    other = OtherJob(tmp_path)
    if way == "sharded":
        models[0].register_load_state_dict_post_hook(other)
    else:
        seen = []

        def hook(_, folder):
            seen.append(Path(folder, MANIFEST_NAME).read_text())
            other()

        accelerator.register_load_state_pre_hook(hook)
    accelerator.load_state(tmp_path / "latest")
    assert values_of(models, optimizer) == [1]
    if way == "hook":
        assert seen[-1] == (tmp_path / "latest" / MANIFEST_NAME).read_text()


def test_a_checkpoint_that_is_removed_after_its_files_are_open_is_loaded(tmp_path):
    accelerator, models, optimizer = build()
    save_copies(accelerator, models, optimizer, tmp_path, num=0)
    models[0].register_load_state_dict_post_hook(lambda *_: shutil.rmtree(tmp_path / "latest"))
    accelerator.load_state(tmp_path / "latest")
    assert values_of(models, optimizer) == [0]


def test_a_file_that_is_damaged_for_good_is_reported_at_the_first_attempt(tmp_path):
    accelerator, models, optimizer = build()
    save_copies(accelerator, models, optimizer, tmp_path, num=0)
    path = tmp_path / "latest" / "optimizer.bin"
    path.write_bytes(bytes(len(path.read_bytes())))
    attempts = []
    accelerator.register_load_state_pre_hook(lambda *_: attempts.append(1))
    with pytest.raises(CheckpointError, match="optimizer.bin` is not what was saved: its digest differs"):
        accelerator.load_state(tmp_path / "latest")
    assert attempts == [1]


def load_where_one_rank_sees_another_save(folder, rank):
    folder = Path(folder)
    accelerator, models, optimizer = build()
    for value in (0, 1):
        fill(models, optimizer, value)
        accelerator.save_state(folder / ("latest" if value == 0 else "save_1"))
    if accelerator.process_index == rank:
        accelerator.unwrap_model(models[0]).meanwhile = OtherJob(folder)
    accelerator.load_state(folder / "latest")
    return values_of(models, optimizer)


@pytest.mark.parametrize("rank", [0, 2])
def test_all_ranks_load_the_same_save(world, tmp_path, rank):
    assert world(3).run(load_where_one_rank_sees_another_save, str(tmp_path), rank) == [[1]] * 3
