from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
    get_worker_info,
)

from accel_data import gather_for_metrics, prepare_data_loader, skip_first_batches
from accel_state.errors import CheckpointError
from accel_state.partial_state import PartialState

# torchdata 0.11 calls what torch 2.13 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

SIZE = 41
EPOCHS = 3


class Stream(IterableDataset):
    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class StatefulStream(Stream):
    """A stream that knows where it is, and counts what it has really read."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__(size)
        self.position = 0
        self.num_read = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < self.size:
            self.position += 1
            self.num_read += 1
            yield self.position - 1
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class DealtStream(StatefulStream):
    """Deals what it has among the workers and its state has how much of its own part one has read."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        while self.position * step + first < self.size:
            self.position += 1
            yield (self.position - 1) * step + first
        self.position = 0


class OddSampler(Sampler[int]):
    """An order of its own, with a separate generator."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[int]:
        return iter(reversed(torch.randperm(SIZE, generator=self.generator).tolist()))

    def __len__(self) -> int:
        return SIZE


class DefaultSampler(Sampler[int]):
    """An order of its own, from torch's default generator."""

    def __iter__(self) -> Iterator[int]:
        return iter(reversed(torch.randperm(SIZE).tolist()))

    def __len__(self) -> int:
        return SIZE


class OddBatches:
    batch_size = 3
    drop_last = False

    def __init__(self) -> None:
        self.sampler = OddSampler()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(BatchSampler(self.sampler, 3, False))

    def __len__(self) -> int:
        return math.ceil(SIZE / 3)


def shuffled(**kwargs: Any) -> DataLoader[Any]:
    torch.manual_seed(1)
    return DataLoader(range(SIZE), batch_size=3, shuffle=True, **kwargs)  # type: ignore[arg-type]


def from_default_generator() -> DataLoader[Any]:
    torch.manual_seed(1)
    return DataLoader(range(SIZE), batch_size=3, sampler=DefaultSampler())  # type: ignore[arg-type]


def weighted() -> DataLoader[Any]:
    torch.manual_seed(1)
    sampler = WeightedRandomSampler([1.0, 2.0, 3.0], SIZE)
    return DataLoader(range(SIZE), batch_size=3, sampler=sampler)  # type: ignore[arg-type]


def shuffled_batches() -> DataLoader[Any]:
    torch.manual_seed(1)
    batches = OddBatches()
    batches.sampler = RandomSampler(range(SIZE))  # type: ignore[assignment]
    return DataLoader(range(SIZE), batch_sampler=batches)  # type: ignore[arg-type]


KINDS: dict[str, tuple[Callable[[], DataLoader[Any]], dict[str, Any]]] = {
    "in order": (lambda: DataLoader(range(SIZE), batch_size=3), {}),  # type: ignore[arg-type]
    "shuffled": (shuffled, {}),
    "weighted": (weighted, {}),
    "own batches of shuffled": (shuffled_batches, {}),
    "own generator": (lambda: shuffled(generator=torch.Generator().manual_seed(2)), {}),
    "seedable": (shuffled, {"use_seedable_sampler": True, "data_seed": 3}),
    "own sampler": (lambda: DataLoader(range(SIZE), batch_size=3, sampler=OddSampler()), {}),  # type: ignore[arg-type]
    "own sampler without a generator": (from_default_generator, {}),
    "own batch sampler": (lambda: DataLoader(range(SIZE), batch_sampler=OddBatches()), {}),  # type: ignore[arg-type]
    "no batches": (lambda: DataLoader(range(SIZE), batch_size=None), {}),  # type: ignore[arg-type]
    "dispatched": (shuffled, {"dispatch_batches": True}),
    "dispatched seedable": (
        shuffled,
        {"dispatch_batches": True, "use_seedable_sampler": True, "data_seed": 3},
    ),
    "dispatched own batch sampler": (
        lambda: DataLoader(range(SIZE), batch_sampler=OddBatches()),  # type: ignore[arg-type]
        {"dispatch_batches": True},
    ),
    "stream": (lambda: DataLoader(Stream(), batch_size=3), {"dispatch_batches": False}),
    "dispatched stream": (lambda: DataLoader(Stream(), batch_size=3), {}),
    "stateful stream": (lambda: DataLoader(StatefulStream(), batch_size=3), {"dispatch_batches": False}),
    "dispatched stateful stream": (lambda: DataLoader(StatefulStream(), batch_size=3), {}),
    "torchdata": (shuffled, {"use_stateful_dataloader": True}),
    "torchdata stream": (lambda: DataLoader(Stream(), batch_size=3), {"use_stateful_dataloader": True}),
}


class Process:
    """A loader in a separate process: it has its own default generator of torch, and saves it as a checkpoint
    does.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.generator_state = torch.get_rng_state()

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            others = torch.get_rng_state()
            torch.set_rng_state(self.generator_state)
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.generator_state = torch.get_rng_state()
                torch.set_rng_state(others)
            yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def state_dict(self) -> dict[str, Any]:
        return {**self.loader.state_dict(), "default generator": self.generator_state.tolist()}

    def load_state_dict(self, state: dict[str, Any], *, position: bool = True) -> None:
        self.loader.load_state_dict(state, position=position)
        self.generator_state = torch.tensor(state["default generator"], dtype=torch.uint8)


def start(kind: str, num: int, state: str | None = None) -> list[Any]:
    """Return new loaders for ``num`` simulated ranks, as after a start of new processes."""
    make, flags = KINDS[kind]
    if flags.get("use_stateful_dataloader"):
        pytest.importorskip("torchdata")
    loaders: list[Any] = []
    for rank in range(num):
        loader: Any = prepare_data_loader(
            make(), num_processes=num, process_index=rank, **({"even_batches": False} | flags)
        )
        loader = Process(loader)
        if state is not None:
            loader.load_state_dict(json.loads(state))
        loaders.append(loader)
    return loaders


def rows(batch: Any) -> list[int]:
    return torch.as_tensor(batch).reshape(-1).tolist()


def read(loaders: list[Any], steps: int | None = None, *, epochs: int = 1) -> tuple[list[int], str]:
    """Read the rest of this epoch, further epochs, or some steps; return the stream and the state of the first rank."""
    stream: list[int] = []
    state = ""
    for _ in range(epochs):
        iterators = [iter(loader) for loader in loaders]
        for _ in range(steps) if steps is not None else iter(int, 1):
            batches = [next(iterator, None) for iterator in iterators]
            if batches[0] is None:
                break
            for batch in batches:
                stream += [] if batch is None else rows(batch)
        # Taken inside of the loop: the pass is still under way.
        state = json.dumps(loaders[0].state_dict())
    return stream, state


def digest(stream: list[int]) -> str:
    return hashlib.sha256(json.dumps(stream).encode()).hexdigest()


@pytest.mark.filterwarnings("ignore:The data set is a stream")
@pytest.mark.parametrize("kind", KINDS)
def test_chains_of_saving_and_resuming_give_the_unbroken_stream(kind: str) -> None:
    unbroken, _ = read(start(kind, 1), epochs=EPOCHS)
    assert len(unbroken) == EPOCHS * SIZE
    for seed in range(6):
        choose = random.Random(seed)
        stream: list[int] = []
        state: str | None = None
        num = 2
        for _ in range(60):
            if not (kind == "torchdata stream" and num == 2):
                num = choose.choice([1, 2, 3, 5])
            loaders = start(kind, num, state)
            part, state = read(loaders, choose.randint(0, 6))
            stream += part
            if len(stream) >= EPOCHS * SIZE:
                break
        assert digest(stream[: len(unbroken)]) == digest(unbroken), (seed, kind)


@pytest.mark.filterwarnings("ignore:The data set is a stream")
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_can_be_saved_at_every_step_and_again_before_reading_on(kind: str) -> None:
    reference, _ = read(start(kind, 2))
    loaders = start(kind, 2)
    seen: list[int] = []
    for batches in zip(*loaders, strict=False):
        seen += [row for batch in batches for row in rows(batch)]
        state = json.dumps(loaders[0].state_dict())
        again = start(kind, 2, state)
        assert json.dumps(again[0].state_dict()) == state
        rest, _ = read(again)
        assert seen + rest == reference


@pytest.mark.parametrize("kind", ["shuffled", "seedable", "dispatched", "stateful stream"])
def test_a_state_between_epochs_begins_the_next_one(kind: str) -> None:
    unbroken, _ = read(start(kind, 1), epochs=2)
    loaders = start(kind, 2)
    first = [row for batches in zip_all(loaders) for batch in batches for row in rows(batch)]
    state = loaders[0].state_dict()
    assert (state["epoch"], state["samples"]) == (1, 0)
    rest, _ = read(start(kind, 3, json.dumps(state)))
    assert first + rest == unbroken


def zip_all(loaders: list[Any]) -> Iterator[list[Any]]:
    iterators = [iter(loader) for loader in loaders]
    while batches := [batch for iterator in iterators if (batch := next(iterator, None)) is not None]:
        yield batches


@settings(max_examples=60, deadline=None)
@given(
    first=st.integers(1, 5),
    then=st.integers(1, 5),
    rows_then=st.integers(1, 7),
    steps=st.integers(0, 9),
    even=st.booleans(),
)
def test_number_of_ranks_and_batch_size_may_change(
    first: int, then: int, rows_then: int, steps: int, even: bool
) -> None:
    def loaders(num: int, batch_size: int) -> list[Any]:
        made = []
        for rank in range(num):
            torch.manual_seed(1)
            loader = DataLoader(range(SIZE), batch_size=batch_size, shuffle=True)  # type: ignore[arg-type]
            prepared = prepare_data_loader(loader, num_processes=num, process_index=rank, even_batches=even)
            made.append(Process(prepared))
        return made

    def real_rows(some: list[Any], stop: int | None) -> list[int]:
        stream: list[int] = []
        for batches in islice(zip_all(some), stop):
            shape = some[0].step_shape
            stream += [
                row for batch, num_valid in zip(batches, shape.num_valid) for row in rows(batch)[:num_valid]
            ]
        return stream

    whole = real_rows(loaders(1, 3), None)
    before = loaders(first, 3)
    seen = real_rows(before, steps)
    after = loaders(then, rows_then)
    for loader in after:
        loader.load_state_dict(before[0].state_dict())
    if before[0].iteration == 0:
        assert seen + real_rows(after, None) == whole


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["shuffled", "dispatched"])
def test_workers_that_read_ahead_do_not_move_the_position(kind: str, workers: int) -> None:
    _, flags = KINDS[kind]

    def loader(num_workers: int) -> Any:
        given = shuffled(num_workers=num_workers)
        return Process(prepare_data_loader(given, num_processes=1, process_index=0, **flags))

    whole = [rows(batch) for batch in loader(0)]
    first = loader(workers)
    iterator = iter(first)
    seen = [rows(next(iterator)) for _ in range(4)]
    state = first.state_dict()
    del iterator
    assert state["samples"] == 12
    second = loader(workers)
    second.load_state_dict(state)
    assert seen + [rows(batch) for batch in second] == whole


def test_a_stateful_stream_is_not_replayed() -> None:
    _, state = read(start("stateful stream", 1), 5)
    loader = start("stateful stream", 1, state)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows(next(iter(loader))) == [15, 16, 17]
    # The first batch, and the one that is fetched ahead.
    assert loader.dataset.num_read == 6


def test_a_plain_stream_is_replayed_with_a_warning_that_counts() -> None:
    _, state = read(start("stream", 2), 4)
    loaders = start("stream", 2, state)
    with pytest.warns(UserWarning, match="24 samples are read again"):
        assert rows(next(iter(loaders[1]))) == [27, 28, 29]


def test_a_stream_read_by_workers_is_replayed_batch_by_batch() -> None:
    def loader() -> Any:
        given = DataLoader(Stream(20), batch_size=3, num_workers=1)
        return prepare_data_loader(given, num_processes=2, process_index=1, dispatch_batches=False)

    first = loader()
    iterator = iter(first)
    assert [rows(next(iterator)) for _ in range(2)] == [[3, 4, 5], [9, 10, 11]]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    with pytest.warns(UserWarning, match="2 batches are read again"):
        assert [rows(batch) for batch in second] == [[15, 16, 17], [1, 2, 3]]
    other = prepare_data_loader(
        DataLoader(Stream(20), batch_size=3, num_workers=1),
        num_processes=1,
        process_index=0,
        dispatch_batches=False,
    )
    other.load_state_dict(state)  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match="saved with 2 processes"):
        next(iter(other))


@pytest.mark.parametrize(("dispatch", "persistent"), [(False, False), (True, True)])
def test_with_torchdata_workers_resume_a_stateful_stream_where_each_of_them_was(
    dispatch: bool, persistent: bool
) -> None:
    def loader() -> Any:
        # Of 11 samples the first worker reads 6 and the second 5: the last batch of the one is full, of the other not.
        given = DataLoader(DealtStream(11), batch_size=3, num_workers=2, persistent_workers=persistent)
        return prepare_data_loader(
            given,
            num_processes=1,
            process_index=0,
            dispatch_batches=dispatch,
            use_stateful_dataloader=True,
        )

    pytest.importorskip("torchdata")
    whole = [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9]]
    state = loader().state_dict()
    for num_seen in range(5):
        going_on = loader()
        going_on.load_state_dict(json.loads(json.dumps(state)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [rows(batch) for batch in going_on] == whole[num_seen:]
        assert [rows(batch) for batch in going_on] == whole
        one_more = loader()
        one_more.load_state_dict(state)
        for batch in one_more:
            assert rows(batch) == whole[num_seen]
            state = one_more.state_dict()
            break


class LazyLoader(DataLoader):
    """A loader class whose iteration starts the workers only when the first batch is requested."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield batch + 100


def test_without_torchdata_a_stream_with_a_state_in_workers_is_read_again() -> None:
    def loader() -> Any:
        given = LazyLoader(DealtStream(11), batch_size=3, num_workers=2)
        return prepare_data_loader(given, num_processes=1, process_index=0, dispatch_batches=False)

    first = loader()
    batches = iter(first)
    assert [rows(next(batches)) for _ in range(3)] == [[100, 102, 104], [101, 103, 105], [106, 108, 110]]
    second = loader()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    with pytest.warns(UserWarning, match="3 batches are read again .* `use_stateful_dataloader=True`"):
        assert [rows(batch) for batch in second] == [[107, 109]]
    assert len(list(second)) == 4


@pytest.mark.parametrize("stream", [DealtStream, Stream])
def test_a_stream_is_not_resumed_with_another_number_of_workers(stream: Callable[[], Any]) -> None:
    def loader(workers: int) -> Any:
        given = DataLoader(stream(), batch_size=3, num_workers=workers)
        return prepare_data_loader(given, num_processes=1, process_index=0)

    first = loader(2)
    next(iter(first))
    second = loader(0)
    with pytest.raises(CheckpointError, match=r"`?num_workers=2`?"):
        second.load_state_dict(first.state_dict())
        next(iter(second))


def test_the_state_at_the_end_of_a_stream_is_that_of_a_data_set_which_has_noticed_its_end() -> None:
    def loader() -> Any:
        return prepare_data_loader(
            DataLoader(StatefulStream(6), batch_size=3),
            num_processes=1,
            process_index=0,
            dispatch_batches=False,
        )

    first = loader()
    for _ in first:
        state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert list(second) == []
    assert [rows(batch) for batch in second] == [[0, 1, 2], [3, 4, 5]]


class BufferingStream(StatefulStream):
    """Gives its state away as it is, not a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"position": 0}

    def __iter__(self) -> Iterator[int]:
        while self.state["position"] < self.size:
            self.state["position"] += 1
            yield self.state["position"] - 1

    def state_dict(self) -> dict[str, int]:
        return self.state


def test_a_state_that_the_data_set_continues_to_change_is_that_of_the_last_batch_handed_out() -> None:
    loader: Any = prepare_data_loader(
        DataLoader(BufferingStream(), batch_size=3), num_processes=1, process_index=0
    )
    next(iter(loader))
    assert loader.state_dict()["dataset"] == {"position": 3}


@pytest.mark.parametrize("is_given", [False, True])
def test_torchdata_resumes_map_style_data_at_another_number_of_ranks(is_given: bool) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loaders(num: int) -> list[Any]:
        kind = stateful if is_given else DataLoader
        given = [
            kind(range(SIZE), batch_size=8 // num, shuffle=True, generator=torch.Generator().manual_seed(3))
            for _ in range(num)
        ]
        return [
            prepare_data_loader(one, num_processes=num, process_index=rank, use_stateful_dataloader=True)
            for rank, one in enumerate(given)
        ]

    whole = [row for batch in loaders(1)[0] for row in rows(batch)]
    first = loaders(1)[0]
    seen = [row for batch in islice(first, 3) for row in rows(batch)]
    state = first.state_dict()
    two = loaders(2)
    for loader in two:
        loader.load_state_dict(state)
    parts = [[rows(batch) for batch in loader] for loader in two]
    assert seen == whole[:24]
    assert [row for step in zip(*parts, strict=True) for part in step for row in part][:17] == whole[24:]


def test_the_random_sampler_of_torchdata_becomes_seedable() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    loader: Any = prepare_data_loader(
        stateful(range(SIZE), batch_size=4, shuffle=True),
        num_processes=1,
        process_index=0,
        use_seedable_sampler=True,
        data_seed=7,
    )
    sampler = RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(7))
    assert [rows(batch) for batch in loader] == list(BatchSampler(sampler, 4, drop_last=False))


def test_torchdata_resumes_a_stateful_stream_in_its_workers() -> None:
    pytest.importorskip("torchdata")

    def loader() -> Any:
        given = DataLoader(StatefulStream(), batch_size=3, num_workers=1)
        return prepare_data_loader(given, num_processes=1, process_index=0, use_stateful_dataloader=True)

    first = loader()
    iterator = iter(first)
    seen = [row for _ in range(4) for row in rows(next(iterator))]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert seen + [row for batch in second for row in rows(batch)] == list(range(SIZE))


class Augmented(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.strength = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.strength += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"strength": self.strength}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.strength = state["strength"]


def test_a_data_set_with_a_state_has_it_saved() -> None:
    first, second = Augmented(), Augmented()
    loader: Any = prepare_data_loader(DataLoader(first, batch_size=2), num_processes=1, process_index=0)
    next(iter(loader))
    other: Any = prepare_data_loader(DataLoader(second, batch_size=2), num_processes=1, process_index=0)
    other.load_state_dict(loader.state_dict())
    assert second.strength == 2


def counted(**kwargs: Any) -> Any:
    """Return a prepared loader whose batches show how often its reader's copy of the data set has been read."""
    flags = {
        name: kwargs.pop(name) for name in ("use_stateful_dataloader", "dispatch_batches") if name in kwargs
    }
    if flags.get("use_stateful_dataloader"):
        pytest.importorskip("torchdata")
    given = DataLoader(Counted(), batch_size=2, **kwargs)
    return prepare_data_loader(given, num_processes=1, process_index=0, **flags)


class Counted(Augmented):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        super().__getitem__(index)
        return 100 * index + self.strength


@pytest.mark.parametrize(
    ("flags", "leg"),
    [
        ({"dispatch_batches": True}, 3),
        ({"num_workers": 2, "use_stateful_dataloader": True}, 3),
        ({"num_workers": 2, "use_stateful_dataloader": True, "dispatch_batches": True}, 3),
        ({"num_workers": 2, "use_stateful_dataloader": True, "persistent_workers": True}, 5),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else f"{value} steps",
)
def test_the_states_of_the_workers_copies_of_a_data_set_are_saved(flags: dict[str, Any], leg: int) -> None:
    unbroken = [rows(batch) for batch in counted(**flags)]
    seen: list[list[int]] = []
    state = None
    while len(seen) < len(unbroken):
        loader = counted(**flags)
        if state is not None:
            loader.load_state_dict(json.loads(state))
        batches = iter(loader)
        seen += [rows(batch) for batch in islice(batches, leg)]
        state = json.dumps(loader.state_dict())
        batches.close()
    assert seen == unbroken


def test_without_torchdata_the_states_of_workers_are_not_saved_with_a_warning() -> None:
    loader = counted(num_workers=2)
    batches = iter(loader)
    next(batches)
    with pytest.warns(UserWarning, match="in its 2 workers is not saved.*`use_stateful_dataloader=True`"):
        state = loader.state_dict()
    batches.close()
    other = counted(num_workers=2)
    other.load_state_dict(state)
    assert [row // 100 for batch in other for row in rows(batch)] == list(range(2, 20))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_states_of_workers_are_not_given_to_fewer(num_workers: int) -> None:
    loader = counted(num_workers=2, use_stateful_dataloader=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()
    other = counted(num_workers=num_workers, use_stateful_dataloader=True)
    with pytest.raises(CheckpointError, match="Use `num_workers=2`"):
        other.load_state_dict(state)
    other.load_state_dict(state, position=False)
    assert len(list(other)) == 10


def test_without_the_position_the_epoch_restarts_in_its_order() -> None:
    whole, _ = read(start("shuffled", 1))
    _, state = read(start("shuffled", 1), 4)
    loader = start("shuffled", 1)[0]
    loader.load_state_dict(json.loads(state), position=False)
    assert [row for batch in loader for row in rows(batch)] == whole


@pytest.mark.parametrize("position", [True, False])
def test_skipping_counts_from_the_start_of_the_epoch_whatever_was_loaded(position: bool) -> None:
    whole, _ = read(start("shuffled", 1), epochs=2)
    _, state = read(start("shuffled", 1), 4)
    loader = start("shuffled", 1)[0]
    loader.load_state_dict(json.loads(state), position=position)
    skipped = skip_first_batches(loader.loader, 4)
    stream = [row for batch in skipped for row in rows(batch)]
    stream += [row for batch in loader for row in rows(batch)]
    assert stream == whole[12:]


def test_a_state_of_other_data_is_refused() -> None:
    _, state = read(start("in order", 1), 2)
    loader: Any = prepare_data_loader(DataLoader(range(7)), num_processes=1, process_index=0)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="saved with 41 samples, but there are 7 now"):
        loader.load_state_dict(json.loads(state))


def test_a_state_of_another_version_is_refused() -> None:
    loader = start("in order", 1)[0]
    with pytest.raises(CheckpointError, match="has version 99, this release reads version 2 and older ones"):
        loader.load_state_dict(loader.state_dict() | {"version": 99})


def test_a_state_of_version_1_continues_in_its_order() -> None:
    """There the state was that of a generator which the sampler was given."""
    drawn_from = torch.Generator().manual_seed(8)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(8)).tolist()
    state = {
        "version": 1, "epoch": 2, "samples": 12, "batches": 4, "num_processes": 2, "rank": None, "num_samples": SIZE,
        "seed": None, "generator": base64.b64encode(drawn_from.get_state().numpy().tobytes()).decode(),
        "is_order_drawn": True, "dataset": None, "workers": None, "stream_workers": None, "num_workers": None,
        "loader": None, "is_complete": False,
    }  # fmt: skip
    loader = start("shuffled", 1)[0].loader
    loader.load_state_dict(state)
    assert loader.iteration == 2
    batches = iter(loader)
    assert [row for _ in range(3) for row in rows(next(batches))] == order[12:21]
    again = start("shuffled", 1)[0].loader
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [row for batch in again for row in rows(batch)] == order[21:]


def test_another_epoch_forgets_the_position() -> None:
    _, state = read(start("seedable", 1), 3)
    loader = start("seedable", 1, state)[0]
    loader.set_epoch(2)
    expected = torch.randperm(SIZE, generator=torch.Generator().manual_seed(5)).tolist()
    assert [row for batch in loader for row in rows(batch)] == expected


def save_in_the_middle(
    state: dict[str, Any] | None, steps: int | None, dispatch: bool
) -> tuple[list[int], Any]:
    """Read on from a state on the ranks of this world, and save again."""
    torch.manual_seed(PartialState().process_index)
    loader: Any = prepare_data_loader(
        DataLoader(range(SIZE), batch_size=3, shuffle=True),  # type: ignore[arg-type]
        dispatch_batches=dispatch,
    )
    if state is not None:
        loader.load_state_dict(state)
    stream: list[int] = []
    for step, batch in enumerate(loader, start=1):
        stream += gather_for_metrics(batch).tolist()
        if step == steps:
            break
    return stream, loader.state_dict()


@pytest.mark.parametrize("dispatch", [False, True])
def test_an_epoch_begun_by_two_processes_is_ended_by_three(
    world: Callable[[int], Any], dispatch: bool
) -> None:
    first, state = world(2).run(save_in_the_middle, None, 3, dispatch)[0]
    second, state = world(3).run(save_in_the_middle, json.loads(json.dumps(state)), 1, dispatch)[0]
    third, _ = world(2).run(save_in_the_middle, json.loads(json.dumps(state)), None, dispatch)[0]
    assert [len(first), len(second)] == [18, 9]
    assert sorted(first + second + third) == list(range(SIZE))
    whole, _ = world(2).run(save_in_the_middle, None, None, dispatch)[0]
    assert first + second + third == whole


def test_an_incomplete_state_is_refused_by_what_it_lacks() -> None:
    loader: Any = prepare_data_loader(DataLoader(range(4)), num_processes=1, process_index=0)  # type: ignore[arg-type]
    state = loader.state_dict()
    del state["epoch"], state["seed"]
    with pytest.raises(CheckpointError, match="lacks `epoch`, `seed`"):
        loader.load_state_dict(state)


class SelfSharding(StatefulStream):
    """A stream that splits itself into parts; each knows where it is."""

    num_shards = 4

    def __init__(self, size: int = 24, first: int = 0) -> None:
        super().__init__(size)
        self.first = first

    def shard(self, num_shards: int, index: int) -> SelfSharding:
        part = self.size // num_shards
        return SelfSharding(part, part * index)

    def __iter__(self) -> Iterator[int]:
        return (self.first + position for position in super().__iter__())


def own_part(rank: int, *, num: int = 2, dispatch: bool = False) -> Any:
    loader = DataLoader(SelfSharding(), batch_size=2)
    return prepare_data_loader(
        loader, num_processes=num, process_index=rank, dispatch_batches=dispatch, even_batches=False
    )


def state_after_two_batches(loader: Any) -> dict[str, Any]:
    iterator = iter(loader)
    next(iterator), next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_of_a_stream_continues_with_its_own_state(rank: int) -> None:
    loader = own_part(rank)
    assert loader.has_state_per_rank
    resumed = own_part(rank)
    resumed.load_state_dict(state_after_two_batches(loader))
    first = 12 * rank + 4
    assert [row for batch in resumed for row in rows(batch)] == list(range(first, first + 8))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: own_part(1), "was saved by process 0, but this is process 1"),
        (
            lambda: own_part(0, num=4),
            "was saved with 2 processes. Resuming a self-sharding data set with 4",
        ),
        (lambda: own_part(0, dispatch=True), "the loader here reads for all processes together"),
    ],
)
def test_the_state_of_a_part_is_refused_elsewhere(other: Callable[[], Any], message: str) -> None:
    state = state_after_two_batches(own_part(0))
    with pytest.raises(CheckpointError, match=message):
        other().load_state_dict(state)


def test_the_state_of_a_full_stream_is_refused_for_a_part() -> None:
    state = state_after_two_batches(own_part(0, dispatch=True))
    with pytest.raises(CheckpointError, match="was saved for all processes together"):
        own_part(0).load_state_dict(state)


class Remembering(Dataset[int]):
    """Map-style data that knows what was read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index

    def state_dict(self) -> dict[str, list[int]]:
        return {"read": list(self.read)}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.read = list(state["read"])


def test_map_style_data_with_a_state_has_one_on_each_rank() -> None:
    def make(rank: int, num: int = 2) -> Any:
        return prepare_data_loader(
            DataLoader(Remembering(), batch_size=2), num_processes=num, process_index=rank
        )

    state = state_after_two_batches(make(0))
    assert make(0).has_state_per_rank
    assert not make(0, num=1).has_state_per_rank
    with pytest.raises(CheckpointError, match="was saved by process 0, but this is process 1"):
        make(1).load_state_dict(state)
    fewer = make(0, num=1)
    fewer.load_state_dict(state)
    assert [row for batch in fewer for row in rows(batch)] == [8, 9, 10, 11]
