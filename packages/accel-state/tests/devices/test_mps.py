"""Apple's GPU, on a fake of `torch.mps`."""

import types

import pytest
import torch

from accel_state.devices.mps import MpsBackend
from accel_state.devices.protocol import DeviceBackend
from accel_state.errors import ConfigError
from accel_state.topology import Topology


@pytest.fixture
def seeds(monkeypatch):
    seeds = []
    fake = types.SimpleNamespace(
        device_count=lambda: 1,
        manual_seed=seeds.append,
        current_allocated_memory=lambda: 10,
        driver_allocated_memory=lambda: 30,
        recommended_max_memory=lambda: 100,
    )
    monkeypatch.setattr(torch, "mps", fake)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: major < 14)
    return seeds


def test_mps_is_one_device_for_one_process(seeds):
    backend = MpsBackend()
    assert isinstance(backend, DeviceBackend)
    assert backend.is_available()
    assert backend.place(Topology()) == torch.device("mps", 0)
    with pytest.raises(ConfigError, match="2 processes on this machine, which has 1 `mps` device"):
        backend.place(Topology(0, 2, 0, 2))


def test_mps_seed_memory_and_precision(seeds):
    backend = MpsBackend()
    backend.rng.seed(5)
    assert seeds == [5]
    assert backend.memory.free_and_total_bytes() == (70, 100)
    assert backend.memory.peak_allocated_bytes() == 10
    assert backend.supports(torch.float16)
    assert not backend.supports(torch.float64)
    assert not backend.supports(torch.bfloat16)
