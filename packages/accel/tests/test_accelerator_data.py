import pytest
import torch
from torch.utils.data import DataLoader

from accel import Accelerator, DataLoaderConfiguration

pytestmark = pytest.mark.usefixtures("fresh_state")


def collectives():
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    mine = torch.arange(rank + 1)
    return {
        "gather": accelerator.gather({"rank": torch.tensor([rank])})["rank"].tolist(),
        "sum": accelerator.reduce(torch.tensor(rank + 1.0)).item(),
        "mean": accelerator.reduce(torch.tensor(rank + 1.0), "mean", scale=2.0).item(),
        "padded": accelerator.pad_across_processes(mine, pad_index=-1).tolist(),
    }


def test_collectives_over_two_processes(world):
    first, second = world(2).run(collectives)
    assert first["gather"] == second["gather"] == [0, 1]
    assert (first["sum"], first["mean"]) == (3.0, 3.0)
    assert (first["padded"], second["padded"]) == ([0, -1], [0, 1])


def test_settings_of_the_loaders_are_those_given():
    config = DataLoaderConfiguration(split_batches=True, even_batches=False, dispatch_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    assert (accelerator.split_batches, accelerator.even_batches, accelerator.dispatch_batches) == (
        True,
        False,
        False,
    )
    assert Accelerator.even_batches.fget(accelerator) is False


def test_skipping_batches_continues_where_it_was():
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(torch.arange(10), batch_size=2))
    rest = accelerator.skip_first_batches(loader, 3)
    assert [batch.tolist() for batch in rest] == [[6, 7], [8, 9]]
