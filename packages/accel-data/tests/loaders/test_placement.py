from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from accel_data import prepare_data_loader
from accel_data.loaders.placement import DirectPlacement, SideStreamPlacement, placement

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="copies on a side stream need a CUDA device"
)


def test_no_device_is_nothing_to_do() -> None:
    assert placement(None, non_blocking=True, is_pinned=True) is None


@pytest.mark.skipif(torch.accelerator.is_available(), reason="batches may come from the accelerator")
def test_without_an_accelerator_the_cpu_is_where_batches_are() -> None:
    assert placement("cpu", non_blocking=False, is_pinned=False) is None


def test_batches_are_copied_when_they_are_asked_for() -> None:
    place = placement("meta", non_blocking=False, is_pinned=False)
    assert isinstance(place, DirectPlacement)
    moved: Any = place.finish(place.begin({"x": torch.zeros(2)}))
    assert moved["x"].device.type == "meta"
    source = iter([torch.zeros(1), torch.zeros(1)])
    next(iter(place.all_of(source)))
    assert len(list(source)) == 1


@needs_cuda
def test_copies_from_pinned_memory_run_one_batch_ahead_and_arrive_whole() -> None:
    data = torch.arange(64 * 100_000, dtype=torch.float32).view(64, 100_000)
    loader = DataLoader(TensorDataset(data), batch_size=4, pin_memory=True)
    prepared: Any = prepare_data_loader(
        loader, torch.device("cuda"), num_processes=1, process_index=0, put_on_device=True, non_blocking=True
    )
    assert isinstance(prepared._placement(), SideStreamPlacement)
    for number, (batch,) in enumerate(prepared):
        assert batch.device.type == "cuda"
        assert torch.equal((batch * 2).cpu(), data[4 * number : 4 * number + 4] * 2)
        assert prepared.end_of_dataloader == (number == 15)
