"""Apple's GPU, on a fake of `torch.mps`."""

import types

import pytest
import torch

from accel_state.devices import device_backend
from accel_state.devices.protocol import DeviceBackend
from accel_state.topology import Topology


@pytest.fixture
def seeds(monkeypatch):
    seeds = []
    fake = types.SimpleNamespace(
        device_count=lambda: 1,
        manual_seed=seeds.append,
        driver_allocated_memory=lambda: 30,
        recommended_max_memory=lambda: 100,
    )
    monkeypatch.setattr(torch, "mps", fake)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: major < 14)
    return seeds


def test_mps_is_one_device_for_one_process(seeds):
    backend = device_backend("mps")
    assert isinstance(backend, DeviceBackend)
    assert backend.why_not() is None
    assert backend.place(Topology()) == torch.device("mps", 0)


def test_mps_seed_memory_and_precision(seeds):
    backend = device_backend("mps")
    backend.rng.seed(5)
    assert seeds == [5]
    assert backend.free_and_total_bytes() == (70, 100)
    assert backend.supports(torch.float16)
    assert not backend.supports(torch.float64)
    assert not backend.supports(torch.bfloat16)
