from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from accel_data import (
    BatchSamplerShard,
    DataLoaderDispatcher,
    DataLoaderShard,
    IterableDatasetShard,
    SeedableRandomSampler,
    gather_for_metrics,
    get_sampler,
    prepare_data_loader,
    skip_first_batches,
)
from accel_state.errors import ConfigError
from accel_state.gradient_state import GradientState
from accel_state.partial_state import PartialState


def for_ranks(make: Callable[[], DataLoader[Any]], num: int, **flags: Any) -> list[Any]:
    """Return the loaders of simulated ranks, each from its own loader, as processes would have."""
    prepared = []
    for rank in range(num):
        torch.manual_seed(0)
        prepared.append(prepare_data_loader(make(), num_processes=num, process_index=rank, **flags))
    return prepared


def as_processes(loaders: list[Any]) -> list[list[Any]]:
    """Read an epoch of each loader, from the same state of torch's default generator, which each process has one of."""
    before, read = torch.get_rng_state(), []
    for loader in loaders:
        torch.set_rng_state(before)
        read.append(list(loader))
    return read


def global_order(loaders: list[Any]) -> list[int]:
    """Return what the ranks read, side by side, without what only fills up the last step."""
    steps = zip(*as_processes(loaders))
    return [int(row) for step in steps for batch in step for row in torch.as_tensor(batch).reshape(-1)]


class Plain(Dataset):
    def __init__(self, size: int = 24) -> None:
        self.size = size
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


class Stream(IterableDataset):
    def __init__(self, size: int = 24) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class OddLoader(DataLoader):
    """A loader class with a signature, a method and its own iteration."""

    def __init__(self, purpose: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.purpose = purpose

    def describe(self) -> str:
        return f"for {self.purpose}, {self.num_workers} workers"

    def __iter__(self) -> Any:
        return (batch + 1000 for batch in super().__iter__())


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("num", "workers"), [(1, 0), (2, 0), (3, 0), (4, 0), (8, 0), (16, 0), (1, 4), (2, 1), (2, 4), (3, 2)]
)
def test_the_order_is_the_same_for_any_number_of_ranks_and_workers(num: int, workers: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Plain(48), batch_size=1, shuffle=True, num_workers=workers)

    reference, loaders = for_ranks(make, 1), for_ranks(make, num)
    for epoch in range(2):
        torch.manual_seed(epoch)
        expected = global_order(reference)
        torch.manual_seed(epoch)
        assert global_order(loaders) == expected


def test_without_a_last_step_nothing_is_left_over() -> None:
    loader = DataLoader(Plain(7), batch_size=2, drop_last=True)
    prepared: Any = prepare_data_loader(loader, num_processes=2, process_index=0)
    assert [(batch.tolist(), prepared.remainder, prepared.will_pad) for batch in prepared] == [
        ([0, 1], 0, False)
    ]


SHUFFLED: dict[str, Callable[[], DataLoader[Any]]] = {
    "random": lambda: DataLoader(Plain(48), batch_size=1, shuffle=True),
    "workers": lambda: DataLoader(Plain(48), batch_size=1, shuffle=True, num_workers=1),
    "no batches": lambda: DataLoader(Plain(48), batch_size=None, shuffle=True),
    "replacement": lambda: DataLoader(Plain(48), sampler=RandomSampler(range(48), replacement=True)),
    "subset": lambda: DataLoader(Plain(48), sampler=SubsetRandomSampler(range(48))),
    "weighted": lambda: DataLoader(Plain(48), sampler=WeightedRandomSampler([1.0, 2.0, 3.0], 48)),
    "own batches": lambda: DataLoader(Plain(48), batch_sampler=OwnBatches(RandomSampler(range(48)))),
}


@pytest.mark.parametrize(
    ("kind", "num"),
    # A process per loader and epoch takes most of the time.
    [(kind, num) for kind in SHUFFLED for num in (1, 2, 3, 16) if kind != "workers" or num < 3],
)
def test_the_order_is_that_of_plain_pytorch_and_moves_its_generator_alike(kind: str, num: int) -> None:
    make = SHUFFLED[kind]
    torch.manual_seed(7)
    plain, orders, drawn = make(), [], []
    for _ in range(3):
        orders.append([int(row) for batch in plain for row in torch.as_tensor(batch).reshape(-1)])
        drawn.append(torch.rand(()))
    loaders = for_ranks(make, num, even_batches=False)
    torch.manual_seed(7)
    for order, number in zip(orders, drawn, strict=True):
        assert global_order(loaders) == order
        assert torch.rand(()) == number


class OwnBatches:
    """Batches that only this class can split."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        return ([index] for index in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


def test_nothing_of_the_users_is_changed_to_shuffle() -> None:
    loader = DataLoader(Plain(8), shuffle=True)
    prepared = prepare_data_loader(loader, num_processes=1, process_index=0)
    list(prepared)
    assert get_sampler(prepared) is loader.sampler
    assert get_sampler(prepared).generator is None


def test_skipping_reads_the_rest_of_what_plain_pytorch_reads() -> None:
    torch.manual_seed(7)
    plain = [batch.tolist() for batch in SHUFFLED["random"]()]
    (prepared,) = for_ranks(SHUFFLED["random"], 1)
    torch.manual_seed(7)
    assert [batch.tolist() for batch in skip_first_batches(prepared, 40)] == plain[40:]


def test_with_a_generator_one_process_reads_what_torch_would() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Plain(), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(3))

    plain, prepared = make(), for_ranks(make, 1)[0]
    for _ in range(3):
        assert [batch.tolist() for batch in prepared] == [batch.tolist() for batch in plain]


def test_the_seedable_sampler_follows_seed_and_epoch() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Plain(), batch_size=4, shuffle=True)

    loaders = for_ranks(make, 2, use_seedable_sampler=True, data_seed=9)
    sampler = get_sampler(loaders[0])
    assert isinstance(sampler, SeedableRandomSampler)
    first, second = global_order(loaders), global_order(loaders)
    assert first == torch.randperm(24, generator=torch.Generator().manual_seed(9)).tolist()
    assert second == torch.randperm(24, generator=torch.Generator().manual_seed(10)).tolist()
    for loader in loaders:
        loader.set_epoch(0)
    assert global_order(loaders) == first


def seeds_differ_before_and_agree_after() -> tuple[list[int], list[int]]:
    from accel_data import gather_for_metrics
    from accel_state.partial_state import PartialState

    torch.manual_seed(100 + PartialState().process_index)
    seen = []
    for flags in ({}, {"use_seedable_sampler": True}, {"rng_types": ["torch"]}):
        loader = prepare_data_loader(DataLoader(Plain(), batch_size=4, shuffle=True), **flags)
        for _ in range(2):
            seen.append(sorted(row for batch in loader for row in gather_for_metrics(batch).tolist()))
    return seen


def test_ranks_with_different_seeds_share_one_order(world: Callable[[int], Any]) -> None:
    for seen in world(2).run(seeds_differ_before_and_agree_after):
        assert seen == [list(range(24))] * 6


def test_the_given_loader_and_its_sampler_stay_as_they_are() -> None:
    loader = DataLoader(Plain(), batch_size=4, shuffle=True)
    sampler, batches = loader.sampler, loader.batch_sampler
    prepare_data_loader(loader, num_processes=2, process_index=0, use_seedable_sampler=True)
    assert loader.sampler is sampler
    assert loader.batch_sampler is batches
    assert sampler.generator is None  # type: ignore[attr-defined]
    assert len(loader) == 6


def test_class_attributes_and_methods_of_a_loader_are_kept() -> None:
    loader = OddLoader("testing", dataset=Plain(8), batch_size=2)
    prepared: Any = prepare_data_loader(loader, num_processes=2, process_index=1)
    assert isinstance(prepared, OddLoader)
    assert isinstance(prepared, DataLoaderShard)
    assert isinstance(prepared, DataLoader)
    assert prepared.describe() == "for testing, 0 workers"
    assert prepared.dataset is loader.dataset
    assert [batch.tolist() for batch in prepared] == [[1002, 1003], [1006, 1007]]
    assert len(prepared) == 2


@pytest.mark.parametrize("dispatch", [False, True])
def test_a_prepared_loader_can_be_pickled(dispatch: bool) -> None:
    loader = OddLoader("testing", dataset=Plain(8), batch_size=2)
    prepared = prepare_data_loader(loader, num_processes=2, process_index=1, dispatch_batches=dispatch)
    iterator = iter(prepared)
    next(iterator)
    copied = pickle.loads(pickle.dumps(prepared))
    assert isinstance(copied, OddLoader)
    assert copied.purpose == "testing"
    assert [batch.tolist() for batch in copied] == [[1002, 1003], [1006, 1007]]


def test_settings_of_a_loader_are_kept() -> None:
    generator = torch.Generator()
    loader = DataLoader(
        Plain(),
        batch_size=4,
        num_workers=1,
        collate_fn=list,
        worker_init_fn=print,
        persistent_workers=True,
        prefetch_factor=3,
        timeout=7,
        multiprocessing_context="fork",
        generator=generator,
    )
    prepared: Any = prepare_data_loader(loader, num_processes=2, process_index=0)
    for name in (
        "collate_fn",
        "worker_init_fn",
        "persistent_workers",
        "prefetch_factor",
        "timeout",
    ):
        assert getattr(prepared, name) == getattr(loader, name), name
    assert prepared.generator is generator
    assert prepared.multiprocessing_context.get_start_method() == "fork"


def test_what_is_set_on_a_prepared_loader_takes_effect() -> None:
    prepared: Any = prepare_data_loader(DataLoader(Plain(4), batch_size=2), num_processes=1, process_index=0)
    prepared.collate_fn = tuple
    assert list(prepared) == [(0, 1), (2, 3)]
    with pytest.raises(ValueError, match="batch_sampler attribute should not be set"):
        prepared.batch_sampler = None


def test_persistent_workers_serve_every_epoch() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Plain(12), batch_size=2, num_workers=1, persistent_workers=True, shuffle=True)

    loaders = for_ranks(make, 2)
    orders = [global_order(loaders) for _ in range(3)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert orders[0] != orders[1]


def test_even_batches_can_be_changed_from_outside() -> None:
    prepared: Any = prepare_data_loader(DataLoader(Plain(6), batch_size=2), num_processes=2, process_index=1)
    assert prepared.even_batches is True
    prepared.batch_sampler.even_batches = False
    assert [batch.tolist() for batch in prepared] == [[2, 3]]
    prepared.even_batches = True
    assert [batch.tolist() for batch in prepared] == [[2, 3], [0, 1]]


@pytest.mark.parametrize("num", [1, 2, 3])
def test_a_loader_without_batches_is_distributed_sample_by_sample(num: int) -> None:
    loaders = for_ranks(lambda: DataLoader(Plain(7), batch_size=None), num, even_batches=False)
    assert [list(loader) for loader in loaders] == [list(range(rank, 7, num)) for rank in range(num)]


def test_a_batch_sampler_in_the_place_of_the_sampler_is_distributed_batch_by_batch() -> None:
    class ByList(Plain):
        def __getitem__(self, indices: Any) -> torch.Tensor:
            return torch.tensor(indices)

    def make() -> DataLoader[Any]:
        return DataLoader(ByList(8), batch_size=None, sampler=BatchSampler(range(8), 2, False))

    loaders = for_ranks(make, 2)
    assert [[batch.tolist() for batch in loader] for loader in loaders] == [
        [[0, 1], [4, 5]],
        [[2, 3], [6, 7]],
    ]
    assert isinstance(loaders[0].sampler, BatchSamplerShard)


class Evens(Sampler[int]):
    def __init__(self, size: int) -> None:
        self.size = size
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, self.size, 2))

    def __len__(self) -> int:
        return self.size // 2

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def test_a_sampler_of_the_user_is_kept_and_given_the_epoch() -> None:
    sampler = Evens(12)
    loader = DataLoader(Plain(12), batch_size=2, sampler=sampler)
    prepared = prepare_data_loader(loader, num_processes=2, process_index=0)
    assert get_sampler(prepared) is sampler
    assert [batch.tolist() for batch in prepared] == [[0, 2], [8, 10]]
    list(prepared)
    prepared.set_epoch(7)  # type: ignore[attr-defined]
    assert sampler.epochs == [0, 1, 7]


def test_a_data_set_is_given_the_epoch() -> None:
    class Told(Stream):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    dataset = Told(8)
    prepared = prepare_data_loader(
        DataLoader(dataset, batch_size=2), num_processes=2, process_index=0, dispatch_batches=False
    )
    list(prepared)
    list(prepared)
    assert dataset.epoch == 1
    prepared.set_epoch(5)  # type: ignore[attr-defined]
    assert dataset.epoch == 5


def test_streams_are_dispatched_unless_configured_otherwise() -> None:
    loader = DataLoader(Stream(), batch_size=2)
    kinds = [
        type(prepare_data_loader(loader, num_processes=2, process_index=0, dispatch_batches=dispatch))
        for dispatch in (None, True, False)
    ]
    assert kinds == [DataLoaderDispatcher, DataLoaderDispatcher, DataLoaderShard]
    map_style = prepare_data_loader(DataLoader(Plain()), num_processes=2, process_index=0)
    assert type(map_style) is DataLoaderShard


def test_a_stream_that_is_a_shard_already_is_not_sharded_again() -> None:
    shard = IterableDatasetShard(Stream(8), batch_size=2, num_processes=2, process_index=1)
    prepared = prepare_data_loader(
        DataLoader(shard, batch_size=2), num_processes=2, process_index=1, dispatch_batches=False
    )
    assert [batch.tolist() for batch in prepared] == [[2, 3], [6, 7]]


def test_a_prepared_loader_is_not_prepared_again() -> None:
    prepared = prepare_data_loader(DataLoader(Plain()), num_processes=2, process_index=0)
    assert prepare_data_loader(prepared, num_processes=2, process_index=0) is prepared


def test_the_gradient_state_knows_the_loader_while_it_is_read() -> None:
    state = GradientState()
    prepared = prepare_data_loader(DataLoader(Plain(7), batch_size=2), num_processes=2, process_index=0)
    seen = []
    for _ in prepared:
        assert state.active_dataloader is prepared
        seen.append((state.end_of_dataloader, state.remainder))
    assert seen == [(False, 3), (True, 3)]
    assert not state.in_dataloader
    for _ in prepared:
        break
    assert not state.in_dataloader


def test_an_exception_in_the_loop_ends_the_pass() -> None:
    prepared = prepare_data_loader(DataLoader(Plain(7), batch_size=2), num_processes=1, process_index=0)

    def fail() -> None:
        for _ in prepared:
            raise KeyError("own")

    with pytest.raises(KeyError):
        fail()
    assert not GradientState().in_dataloader


def test_no_batch_is_read_before_it_is_requested_where_the_length_is_known() -> None:
    dataset = Plain(8)
    prepared = prepare_data_loader(DataLoader(dataset, batch_size=2), num_processes=1, process_index=0)
    next(iter(prepared))
    assert dataset.read == [0, 1]


def test_batches_go_to_the_device() -> None:
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    prepared = prepare_data_loader(
        loader, torch.device("meta"), num_processes=1, process_index=0, put_on_device=True
    )
    assert [batch[0].device.type for batch in prepared] == ["meta", "meta"]
    left = prepare_data_loader(loader, torch.device("meta"), num_processes=1, process_index=0)
    assert [batch[0].device.type for batch in left] == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("split", "expected"), [(False, (8, 24)), (True, (4, 24))], ids=["whole batches", "split batches"]
)
def test_sizes_over_all_ranks(split: bool, expected: tuple[int, int]) -> None:
    for dispatch in (False, True):
        prepared: Any = prepare_data_loader(
            DataLoader(Plain(), batch_size=4),
            num_processes=2,
            process_index=0,
            split_batches=split,
            dispatch_batches=dispatch,
        )
        assert (prepared.total_batch_size, prepared.total_dataset_length) == expected


def test_workers_that_do_not_keep_the_order_are_refused() -> None:
    loader = DataLoader(Plain(), num_workers=2, in_order=False)
    with pytest.raises(
        ConfigError, match=r"`in_order=False` lets the workers.*Build the `DataLoader` with `in_order=True`"
    ):
        prepare_data_loader(loader, num_processes=1, process_index=0)
    assert (
        len(prepare_data_loader(DataLoader(Plain(), in_order=False), num_processes=1, process_index=0)) == 24
    )


class Shards(Stream):
    num_shards = 2

    def shard(self, num_shards: int, index: int) -> Stream:
        return Stream(5 if index else 2)


def test_even_batches_on_a_data_set_that_shards_itself_are_reported_to_have_no_effect() -> None:
    def prepare(**flags: Any) -> Any:
        flags = {"num_processes": 2, "process_index": 0, "dispatch_batches": False} | flags
        return prepare_data_loader(DataLoader(Shards()), **flags)

    with pytest.warns(UserWarning, match="`even_batches` has no effect on a self-sh") as warned:
        prepare()
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(even_batches=False)
        prepare(dispatch_batches=True)
        prepare(num_processes=1)


def gather_from_a_loader_built_by_hand() -> list[int]:
    rank = PartialState().process_index
    batches = BatchSamplerShard(BatchSampler(range(7), 2, False), 2, rank)
    loader = DataLoaderShard(range(7), batch_sampler=batches)
    return [row for batch in loader for row in gather_for_metrics(batch).tolist()]


def test_a_loader_built_by_hand_belongs_to_the_ranks_of_the_run(world: Callable[[int], Any]) -> None:
    assert world(2).run(gather_from_a_loader_built_by_hand) == [list(range(7))] * 2


def test_what_is_left_out_of_a_place_is_that_of_the_run() -> None:
    loader = prepare_data_loader(DataLoader(range(4)), num_processes=2, put_on_device=False)
    assert [batch.tolist() for batch in loader] == [[0], [2]]
    with pytest.raises(ConfigError, match="got 1 of 1"):
        prepare_data_loader(DataLoader(range(4)), process_index=1)


def test_a_prepared_loader_has_the_state_of_accumulation() -> None:
    loader = prepare_data_loader(DataLoader(range(2)), put_on_device=False)
    assert loader.gradient_state.active_dataloader is None
    for _ in loader:
        assert loader.gradient_state.active_dataloader is loader


def test_a_slice_function_without_dispatch_is_reported_to_have_no_effect() -> None:
    with pytest.warns(UserWarning, match="`slice_fn_for_dispatch` has no effect") as warned:
        prepare_data_loader(
            DataLoader(Plain()), num_processes=2, process_index=0, slice_fn_for_dispatch=print
        )
    assert warned[0].filename == __file__


def test_random_sampler_keeps_its_settings_when_it_becomes_seedable() -> None:
    sampler = RandomSampler(Plain(), replacement=True, num_samples=40)
    loader = DataLoader(Plain(), batch_size=4, sampler=sampler)
    prepared = prepare_data_loader(loader, num_processes=1, process_index=0, use_seedable_sampler=True)
    seedable = get_sampler(prepared)
    assert (seedable.replacement, seedable.num_samples) == (True, 40)
    assert len(prepared) == 10


def test_a_sampler_that_shards_already_is_refused() -> None:
    sampler = DistributedSampler(Plain(), num_replicas=2, rank=0)
    with pytest.raises(ConfigError, match="one part of 2 already"):
        prepare_data_loader(DataLoader(Plain(), sampler=sampler), num_processes=2, process_index=0)


@pytest.mark.parametrize("use", [prepare_data_loader, lambda loader: skip_first_batches(loader, 1)])
def test_what_is_no_loader_is_refused(use):
    with pytest.raises(
        ConfigError, match="must be a `torch.utils.data.DataLoader`, got an object of type `list`"
    ):
        use([1, 2])


@pytest.mark.parametrize(("num_processes", "process_index"), [(2, 2), (2, -1), (0, 0)])
@pytest.mark.parametrize("dispatch", [False, True])
def test_a_process_that_is_none_of_those_is_refused(num_processes, process_index, dispatch):
    with pytest.raises(ConfigError, match=f"got {process_index} of {num_processes}"):
        prepare_data_loader(
            DataLoader(range(4)),
            num_processes=num_processes,
            process_index=process_index,
            dispatch_batches=dispatch,
        )


class Countdown(IterableDataset):
    first = 5

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, 0, -1))


def begin_with_three(worker: int) -> None:
    get_worker_info().dataset.first = 3  # type: ignore[union-attr]


def test_settings_of_a_stream_may_be_changed_between_epochs():
    loader = prepare_data_loader(
        DataLoader(Countdown(), batch_size=1),
        num_processes=2,
        process_index=1,
        dispatch_batches=False,
        even_batches=False,
    )
    assert [batch.tolist() for batch in loader] == [[4], [2]]
    loader.even_batches = True
    assert [batch.tolist() for batch in loader] == [[4], [2], [5]]
    loader.num_workers, loader.prefetch_factor = 1, 2
    assert [batch.tolist() for batch in loader] == [[4], [2], [5]]
    loader.worker_init_fn = begin_with_three
    assert [batch.tolist() for batch in loader] == [[2], [3]]


@pytest.mark.parametrize("dispatch", [False, True])
def test_a_batch_sampler_may_have_no_length(dispatch: bool) -> None:
    class Unsized:
        batch_size = 2
        drop_last = False

        def __iter__(self) -> Iterator[list[int]]:
            return iter([[0, 1], [2, 3], [4]])

    loader = DataLoader(Plain(5), batch_sampler=Unsized())
    prepared = prepare_data_loader(loader, num_processes=1, process_index=0, dispatch_batches=dispatch)
    assert [batch.tolist() for batch in prepared] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    ("num_samples", "num_processes", "split", "num_batches"),
    [(15, 2, False, 0), (16, 2, False, 1), (7, 2, True, 0), (8, 2, True, 1), (7, 1, False, 0)],
)
def test_a_loader_whose_every_batch_is_dropped_is_a_warning(num_samples, num_processes, split, num_batches):
    data = TensorDataset(torch.arange(num_samples))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = prepare_data_loader(
            DataLoader(data, batch_size=8, shuffle=True, drop_last=True),
            num_processes=num_processes,
            process_index=0,
            split_batches=split,
        )
    assert len(loader) == num_batches
    assert [f"there are {num_samples}" in str(one.message) for one in caught] == [True] * (not num_batches)
