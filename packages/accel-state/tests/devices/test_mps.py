"""Apple's GPU, on a stand-in for `torch.mps` with its documented functions."""

import pytest
import torch

from accel_state.devices import device_backend
from accel_state.devices.backend import DeviceBackend
from accel_state.topology import Topology
from tools.harness.vendor_modules import GIB, vendor_module


@pytest.fixture
def module():
    with vendor_module("mps") as module:
        yield module


def test_mps_is_one_device_for_one_process(module):
    backend = device_backend("mps")
    assert isinstance(backend, DeviceBackend)
    assert backend.unavailable_reason() is None
    assert backend.place(Topology()) == torch.device("mps", 0)
    backend.set_device(torch.device("mps", 0))


def test_mps_seed_state_and_memory(module):
    backend = device_backend("mps")
    backend.seed_all(5)
    state = backend.get_rng_state()
    backend.seed_all(6)
    backend.set_rng_state(state)
    assert torch.equal(backend.get_rng_state(), torch.Generator().manual_seed(5).get_state())
    assert backend.free_and_total_bytes() == (12 * GIB, 16 * GIB)
    backend.empty_cache()
    assert module.calls[-1] == "empty_cache"


def test_older_systems_have_no_bf16_and_none_has_64_bits(module, monkeypatch):
    backend = device_backend("mps")
    assert backend.supports(torch.bfloat16)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: major < 14)
    assert backend.why_not_dtype(torch.bfloat16) == "Here bf16 needs macOS 14 or newer."
    assert backend.supports(torch.float16)
    assert backend.why_not_dtype(torch.float64) == "Apple's GPUs have no 64-bit floating point."
    assert backend.why_not_dtype(torch.float8_e4m3fn) == "fp8 is not supported on devices of this kind."
