from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from accel_data import prepare_data_loader


class Numbers(IterableDataset):
    """A stream that its workers divide among themselves."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(worker, self.size, num_workers))


class Batches:
    """A batch sampler with batches of many sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3], [4, 5], [6], [7, 8], [9], [10]])


def read(loader: Any) -> tuple[int, list[str]]:
    """Return the number of batches of a training loop, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)  # Python 3.12's, of workers
        return sum(1 for _ in loader), [str(warning.message) for warning in caught]


def check_messages(ranks: list[tuple[int, list[str]]]) -> None:
    most = max(num for num, _ in ranks)
    for rank, (num, said) in enumerate(ranks):
        expected = f"Rank {rank} has read its {num} batches, and other ranks have {most}: the backward pass"
        assert [message[: len(expected)] for message in said] == ([expected] if num < most else [])
        assert all("Train within `join_uneven_inputs`, or prepare the loader with" in one for one in said)


@pytest.mark.parametrize(
    ("num", "size", "num_workers", "batches"),
    [
        (2, 5, 0, [2, 1]), (2, 4, 0, [1, 1]), (2, 1, 0, [1, 0]), (3, 7, 0, [2, 1, 1]), (3, 9, 0, [2, 2, 1]),
        (3, 13, 2, [3, 2, 2]), (3, 5, 2, [2, 1, 0]),
    ],
)  # fmt: skip
def test_a_rank_that_runs_out_of_its_part_of_a_stream_reports_the_numbers(
    num: int, size: int, num_workers: int, batches: list[int]
) -> None:
    ranks = []
    for rank in range(num):
        given = DataLoader(Numbers(size), batch_size=2, num_workers=num_workers)
        loader = prepare_data_loader(
            given, num_processes=num, process_index=rank, dispatch_batches=False, even_batches=False
        )
        len(loader)  # as progress bars do: torch compares it with the batches that it reads
        ranks.append(read(loader))
        with torch.no_grad():
            assert read(loader) == (batches[rank], [])
    assert [num_read for num_read, _ in ranks] == batches
    check_messages(ranks)


@pytest.mark.parametrize("num", [2, 3])
def test_a_rank_that_runs_out_of_batches_of_a_sampler_reports_the_numbers(num: int) -> None:
    loaders = [
        prepare_data_loader(
            DataLoader(range(11), batch_sampler=Batches()),  # type: ignore[arg-type]
            num_processes=num,
            process_index=rank,
            even_batches=False,
        )
        for rank in range(num)
    ]
    ranks = [read(loader) for loader in loaders]
    assert [num_read for num_read, _ in ranks] == [-(-(7 - rank) // num) for rank in range(num)]
    check_messages(ranks)


def read_dispatched() -> tuple[int, list[str]]:
    return read(prepare_data_loader(DataLoader(Numbers(7), batch_size=2), even_batches=False))


def test_a_rank_that_is_sent_fewer_batches_reports_the_numbers(world: Callable[[int], Any]) -> None:
    ranks = world(3).run(read_dispatched)
    assert [num_read for num_read, _ in ranks] == [2, 1, 1]
    check_messages(ranks)
