from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from accel_data import prepare_data_loader
from accel_state.errors import ConfigError
from accel_state.partial_state import PartialState


class FromGlobal(Sampler[int]):
    """A sampler that draws from torch's default generator."""

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(24).tolist())


class Lazily(FromGlobal):
    """One that draws from it while it is read, as buckets do."""

    def __iter__(self) -> Iterator[int]:
        for block in range(0, 24, 4):
            yield from (torch.randperm(4) + block).tolist()


class FromPython(FromGlobal):
    """A sampler whose randomness nobody can reach."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(24), 24))


class WithGenerator(FromGlobal):
    generator = None

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(24, generator=self.generator).tolist())


class Backwards(FromGlobal):
    def __iter__(self) -> Iterator[int]:
        return iter(range(23, -1, -1))


class Batches:
    """Batches in their own order."""

    batch_size = 2

    def __init__(self, sampler: Any, shuffle: Callable[[list[Any]], Any]) -> None:
        self.sampler = sampler
        self.shuffle = shuffle

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(BatchSampler(self.sampler, 2, False))
        self.shuffle(batches)
        return iter(batches)


class SeededBatches(Batches):
    generator = None

    def __init__(self) -> None:
        super().__init__(range(24), self.permute)

    def permute(self, batches: list[Any]) -> None:
        batches[:] = [batches[i] for i in torch.randperm(12, generator=self.generator).tolist()]


AGREED: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: {"shuffle": True},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(24))},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * 24, 24, replacement=False)},
    "torch's default generator": lambda: {"sampler": FromGlobal()},
    "torch's default generator, bit by bit": lambda: {"sampler": Lazily()},
    "generator attribute": lambda: {"sampler": WithGenerator()},
    "batch sampler with a generator attribute": lambda: {"batch_sampler": SeededBatches()},
    "own batches of a random sampler": lambda: {
        "batch_sampler": Batches(RandomSampler(range(24)), list.reverse)
    },
    "without randomness": lambda: {"sampler": Backwards()},
}

NOT_AGREED: dict[str, Callable[[], dict[str, Any]]] = {
    "FromPython": lambda: {"sampler": FromPython()},
    "Batches": lambda: {"batch_sampler": Batches(RandomSampler(range(24)), random.shuffle)},
    "list": lambda: {"sampler": torch.randperm(24).tolist()},
}


def loader(arguments: dict[str, Any]) -> DataLoader[Any]:
    rank = PartialState().process_index
    torch.manual_seed(rank)
    random.seed(rank)
    made = arguments() if callable(arguments) else arguments
    return prepare_data_loader(DataLoader(range(24), **made))  # type: ignore[arg-type]


def read_two_epochs(kind: str) -> list[list[int]]:
    prepared = loader(AGREED[kind])  # type: ignore[arg-type]
    epochs: list[list[int]] = []
    for _ in range(2):
        epochs.append([])
        for batch in prepared:
            epochs[-1] += batch.tolist()
            torch.rand(PartialState().process_index)  # as the model may, not alike on all ranks
    return epochs


@pytest.mark.parametrize("kind", AGREED)
def test_ranks_with_other_seeds_read_each_sample_once(world: Callable[[int], Any], kind: str) -> None:
    for parts in zip(*world(2).run(read_two_epochs, kind), strict=True):
        assert sorted(row for part in parts for row in part) == list(range(24))


def shuffle_batches_of_one() -> list[int]:
    prepared = loader({"shuffle": True})
    return [int(row) for batch in prepared for row in batch]


def test_the_order_of_all_ranks_is_the_one_that_rank_0_would_read_alone(world: Callable[[int], Any]) -> None:
    torch.manual_seed(0)
    alone = [int(row) for batch in DataLoader(range(24), shuffle=True) for row in batch]  # type: ignore[arg-type]
    parts = world(2).run(shuffle_batches_of_one)
    assert [row for step in zip(*parts, strict=True) for row in step] == alone


def message_of(kind: str) -> list[str]:
    prepared = loader(NOT_AGREED[kind])  # type: ignore[arg-type]
    messages = []
    for _ in range(2):
        try:
            list(prepared)
        except ConfigError as error:
            messages.append(str(error))
    return messages


@pytest.mark.parametrize("kind", NOT_AGREED)
def test_orders_that_differ_between_ranks_are_an_error_that_names_the_sampler(
    world: Callable[[int], Any], kind: str
) -> None:
    for messages in world(2).run(message_of, kind):
        assert len(messages) == 2
        assert all(f"`{kind}` yields different indices on each process" in message for message in messages)


def numbers_after_each_epoch(arguments: dict[str, Any], dispatch: bool) -> list[list[float]]:
    torch.manual_seed(3)
    prepared = prepare_data_loader(
        DataLoader(range(24), **arguments),  # type: ignore[arg-type]
        dispatch_batches=dispatch,
    )
    drawn = []
    for _ in range(2):
        list(prepared)
        drawn.append(torch.rand(()).item())
    return drawn


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize(
    "arguments", [{}, {"shuffle": True}, {"sampler": WeightedRandomSampler([1.0] * 24, 24)}]
)
def test_ranks_with_the_same_seed_draw_the_same_numbers_next_to_the_loader(
    world: Callable[[int], Any], arguments: dict[str, Any], dispatch: bool
) -> None:
    torch.manual_seed(3)
    plain, expected = DataLoader(range(24), **arguments), []  # type: ignore[arg-type]
    for _ in range(2):
        list(plain)
        expected.append(torch.rand(()).item())
    assert world(2).run(numbers_after_each_epoch, arguments, dispatch) == [expected, expected]
