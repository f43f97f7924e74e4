from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, IterableDataset

from accel_data import DataLoaderAdapter, DataLoaderShard, SkipDataLoader, prepare_data_loader
from accel_state import PartialState

# torchdata 0.11 calls what torch 2.13 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


def test_it_reads_like_the_loader_it_is_built_like() -> None:
    adapter = DataLoaderAdapter([1, 2, 3], batch_size=2, collate_fn=list)
    assert list(adapter) == [[1, 2], [3]]
    assert len(adapter) == 2
    assert isinstance(adapter, DataLoader)
    assert adapter.dataset == [1, 2, 3]


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    adapter = DataLoaderAdapter([1])
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = adapter.nothing_of_the_kind


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.usefixtures("fresh_state")
@pytest.mark.parametrize("dispatch", [False, True])
def test_the_length_of_a_stream_is_an_error_that_names_what_to_do(dispatch: bool) -> None:
    PartialState(cpu=True)
    loader = prepare_data_loader(DataLoader(Stream(), batch_size=2), dispatch_batches=dispatch)
    with pytest.raises(TypeError, match=r"'Stream' has no len\(\). Give the data set a `__len__`"):
        len(loader)
    assert len(list(loader)) == 2


def test_a_plain_loader_has_no_state() -> None:
    with pytest.raises(AttributeError, match="state_dict"):
        DataLoaderAdapter([1]).state_dict()


def test_with_torchdata_it_is_a_stateful_loader() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    adapter = DataLoaderAdapter([1, 2, 3], use_stateful_dataloader=True, batch_size=1, collate_fn=list)
    assert isinstance(adapter, stateful)
    assert isinstance(pickle.loads(pickle.dumps(adapter)), stateful)
    iterator = iter(adapter)
    next(iterator)
    again = DataLoaderAdapter([1, 2, 3], use_stateful_dataloader=True, batch_size=1, collate_fn=list)
    again.load_state_dict(adapter.state_dict())
    assert list(again) == [[2], [3]]


def test_a_shard_can_be_built_like_a_loader() -> None:
    shard = DataLoaderShard([1, 2, 3, 4, 5], batch_size=2, collate_fn=list, skip_batches=1, iteration=3)
    assert list(shard) == [[3, 4], [5]]
    assert shard.iteration == 4


def test_a_shard_can_be_built_on_torchdatas_loader() -> None:
    pytest.importorskip("torchdata")
    with_torchdata = DataLoaderShard([1, 2], use_stateful_dataloader=True, batch_size=1, collate_fn=list)
    assert list(with_torchdata) == [[1], [2]]
    assert hasattr(with_torchdata, "load_state_dict")


def test_the_state_of_a_skipping_loader_is_that_of_the_last_batch_yielded() -> None:
    pytest.importorskip("torchdata")

    def make() -> SkipDataLoader:
        return SkipDataLoader(range(6), 1, use_stateful_dataloader=True, batch_size=1, collate_fn=list)

    left, resumed = make(), make()
    for batch in left:
        if batch == [2]:
            break
    resumed.load_state_dict(left.state_dict())
    assert list(resumed) == [[3], [4], [5]]
