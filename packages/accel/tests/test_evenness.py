import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from accel import Accelerator, DataLoaderConfiguration

pytestmark = pytest.mark.usefixtures("fresh_state")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(3, 1))


def uneven_stream(*, dispatch):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    model, loader = accelerator.prepare(nn.Linear(1, 1, bias=False), DataLoader(Stream(), batch_size=1))
    counted = 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for batch in loader:
            accelerator.backward(model(batch).sum())
            counted += 1
    return counted


def test_a_stream_may_be_dealt_unevenly_too(world):
    assert world(2).run(uneven_stream, dispatch=False) == [2, 1]


def warned(*, dispatch):
    with pytest.warns(UserWarning, match="`even_batches=False` has no effect on a prepared DataLoaderDisp"):
        return uneven_stream(dispatch=dispatch)


def test_a_loader_that_rank_0_reads_for_all_says_that_it_stays_even(world):
    assert world(2).run(warned, dispatch=True) == [2, 2]
