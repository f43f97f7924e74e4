"""The CPU backend."""

import torch

from accel_state.devices import device_backend
from accel_state.devices.backend import DeviceBackend
from accel_state.topology import Topology


def test_cpu_follows_the_protocol_and_holds_any_number_of_processes():
    backend = device_backend("cpu")
    assert isinstance(backend, DeviceBackend)
    assert backend.unavailable_reason() is None
    assert backend.place(Topology(63, 64, 63, 64)) == torch.device("cpu") == backend.device(3)
    assert (backend.collective_backend, backend.distributed_type) == ("gloo", "MULTI_CPU")


def test_random_state_comes_back():
    backend = device_backend("cpu")
    before = torch.get_rng_state()
    backend.seed_all(3)
    state = backend.get_rng_state()
    first = torch.rand(2)
    backend.set_rng_state(state)
    assert torch.equal(torch.rand(2), first)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), first)
    torch.set_rng_state(before)


def test_memory_is_the_machines():
    free, total = device_backend("cpu").free_and_total_bytes()
    assert 0 < free < total


def test_fp16_is_for_trying_out_only(monkeypatch):
    backend = device_backend("cpu")
    monkeypatch.delenv("ACCEL_FP16_ON_CPU", raising=False)
    assert "`ACCEL_FP16_ON_CPU=true`, to try a script out" in backend.why_not_dtype(torch.float16)
    assert backend.supports(torch.bfloat16)
    monkeypatch.setenv("ACCEL_FP16_ON_CPU", "true")
    assert backend.supports(torch.float16)
