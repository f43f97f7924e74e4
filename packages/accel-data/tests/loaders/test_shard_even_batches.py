import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from accel_data import override_even_batches, prepare_data_loader

pytestmark = pytest.mark.usefixtures("fresh_state")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class SelfSharding(Stream):
    num_shards = 2

    def shard(self, num_shards, index):
        return self


def last_rank(dataset, **options):
    return prepare_data_loader(DataLoader(dataset), num_processes=2, process_index=1, **options)


@pytest.mark.parametrize("dataset", [torch.arange(3), Stream()], ids=["map-style", "stream"])
def test_the_last_step_is_uneven_in_the_block_only(dataset):
    loader = last_rank(dataset, dispatch_batches=False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        with override_even_batches(loader, False):
            assert len(list(loader)) == 1
    assert len(list(loader)) == 2


@pytest.mark.parametrize(
    ("dataset", "options"),
    [(SelfSharding(), {"dispatch_batches": False, "even_batches": False}), (Stream(), {})],
    ids=["a stream that shards itself", "a dispatched stream"],
)
def test_it_warns_where_it_has_no_effect(dataset, options):
    loader = last_rank(dataset, **options)
    with (
        pytest.warns(UserWarning, match="`even_batches=False` has no effect"),
        override_even_batches(loader, False),
    ):
        pass
