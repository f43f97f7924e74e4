from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from accel_data import prepare_data_loader
from accel_data.loaders.placement import by_side_stream, placed


def test_batches_are_copied_when_they_are_requested() -> None:
    meta = torch.device("meta")
    moved: Any
    ((moved, _),) = placed(iter([({"x": torch.zeros(2)}, None)]), meta, non_blocking=False, is_pinned=False)
    assert moved["x"].device.type == "meta"
    source = iter([(torch.zeros(1), None), (torch.zeros(1), None)])
    next(placed(source, meta, non_blocking=True, is_pinned=True))
    assert len(list(source)) == 1


@pytest.mark.gpu
def test_copies_from_pinned_memory_run_one_batch_ahead_and_arrive_whole() -> None:
    data = torch.arange(64 * 100_000, dtype=torch.float32).view(64, 100_000)
    loader = DataLoader(TensorDataset(data), batch_size=4, pin_memory=True)
    prepared: Any = prepare_data_loader(
        loader, torch.device("cuda"), num_processes=1, process_index=0, put_on_device=True, non_blocking=True
    )
    for number, (batch,) in enumerate(prepared):
        assert batch.device.type == "cuda"
        assert torch.equal((batch * 2).cpu(), data[4 * number : 4 * number + 4] * 2)
        assert prepared.end_of_dataloader == (number == 15)


class Streams:
    """Stands for `torch.cuda`: notes which stream does what, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self._current = "main"
        for name in ("Stream", "Event", "stream", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.Tensor, "record_stream", self._record_stream)

    def Stream(self, device: torch.device) -> str:
        return "side"

    def Event(self) -> Any:
        number = sum(line.startswith("done") for line in self.log)
        return SimpleNamespace(
            number=number, record=lambda stream: self.log.append(f"done {number} on {stream}")
        )

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    def current_stream(self, device: torch.device) -> Any:
        return SimpleNamespace(
            wait_event=lambda event: self.log.append(f"{self._current} waits for {event.number}")
        )

    def _record_stream(self, stream: Any) -> None:
        self.log.append("kept")


def test_each_batch_is_waited_for_after_the_copy_of_the_next_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams(monkeypatch)
    given = iter([({"x": torch.zeros(1)}, "first"), ({"x": torch.zeros(2)}, "second")])
    batches = by_side_stream(given, torch.device("meta"))
    moved: Any
    moved, beside = next(batches)
    assert beside == "first"
    assert moved["x"].device.type == "meta"
    assert streams.log == ["done 0 on side", "done 1 on side", "main waits for 0", "kept"]
    assert [(batch["x"].shape, beside) for batch, beside in batches] == [((2,), "second")]
    assert streams.log[4:] == ["main waits for 1", "kept"]


def test_an_object_that_moves_itself_is_copied_on_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opaque:
        def to(self, device: torch.device, non_blocking: bool = False) -> str:
            return f"moved to {device}"

    streams = Streams(monkeypatch)
    assert list(by_side_stream(iter([(Opaque(), None)]), torch.device("meta"))) == [("moved to meta", None)]
    assert streams.log == []


@pytest.mark.parametrize(
    ("flags", "num_taken"),
    [
        ({"non_blocking": True, "is_pinned": True}, 2),
        ({"non_blocking": True, "is_pinned": False}, 1),
        ({"non_blocking": False, "is_pinned": True}, 1),
    ],
)
def test_pinned_batches_for_a_cuda_device_ride_the_side_stream(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, bool], num_taken: int
) -> None:
    Streams(monkeypatch)
    batches = iter([([], None), ([], None), ([], None)])
    next(placed(batches, torch.device("cuda"), **flags))
    assert len(list(batches)) == 3 - num_taken


class Random(torch.utils.data.Dataset):
    """Samples that are drawn as they are read."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(2)


@pytest.mark.parametrize(("num_workers", "is_ahead"), [(0, False), (1, True)])
def test_without_workers_no_batch_is_read_ahead(
    monkeypatch: pytest.MonkeyPatch, num_workers: int, is_ahead: bool
) -> None:
    """It would draw random numbers before those of the training step, other ones than after a resume."""
    seen: list[bool] = []

    def note(batches: Any, device: torch.device, *, is_pinned: bool, **_: Any) -> Any:
        seen.append(is_pinned)
        return batches

    monkeypatch.setattr("accel_data.loaders.prepared.placed", note)
    source = DataLoader(Random(), batch_size=2, pin_memory=True, num_workers=num_workers)
    prepared = prepare_data_loader(source, torch.device("meta"), put_on_device=True, non_blocking=True)
    assert len(list(prepared)) == 3
    assert seen == [is_ahead]
