"""XLA, on a fake of the parts of `torch_xla` that are used."""

import sys
import types

import pytest
import torch

from accel_state.availability import is_torch_xla_available
from accel_state.devices import device_backend
from accel_state.devices.backend import DeviceBackend
from accel_state.topology import Topology


@pytest.fixture
def calls(monkeypatch):
    calls = []
    state = {"rng": 1}
    model = types.SimpleNamespace(
        get_rng_state=lambda: state["rng"],
        set_rng_state=lambda seed: state.update(rng=seed),
        get_memory_info=lambda device: {"bytes_used": 40, "bytes_limit": 100},
        rendezvous=calls.append,
    )
    runtime = types.SimpleNamespace(
        device_type=lambda: "TPU",
        local_device_count=lambda: 4,
        world_size=lambda: 8,
        local_process_count=lambda: 4,
        global_ordinal=lambda: 6,
        local_ordinal=lambda: 2,
    )
    package = types.SimpleNamespace(device=lambda: torch.device("xla", 0))
    modules = {"": package, ".core": None, ".core.xla_model": model, ".runtime": runtime}
    modules |= {".distributed": None, ".distributed.xla_backend": types.SimpleNamespace()}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"torch_xla{name}", module or types.ModuleType(f"torch_xla{name}"))
    return calls


def test_xla_reports_device_and_place(calls):
    backend = device_backend("xla")
    assert isinstance(backend, DeviceBackend)
    assert backend.unavailable_reason() is None
    assert backend.count() == 4
    assert backend.place(Topology()) == torch.device("xla", 0)
    assert backend.refine_topology(Topology()) == Topology(6, 8, 2, 4, 1, 2, source="xla")


def test_xla_can_be_switched_off(calls, monkeypatch):
    monkeypatch.setenv("USE_TORCH_XLA", "false")
    assert device_backend("xla").unavailable_reason() == "No XLA device: `USE_TORCH_XLA` is false."
    assert not is_torch_xla_available()
    monkeypatch.setenv("USE_TORCH_XLA", "true")
    assert is_torch_xla_available()


def test_xla_meets_through_its_own_runtime(calls):
    backend = device_backend("xla")
    assert backend.process_group_options() == {"init_method": "xla://"}
    backend.barrier(torch.device("xla", 0))
    assert calls == ["accel.wait_for_everyone"]


def test_xla_random_state_and_memory(calls):
    backend = device_backend("xla")
    backend.seed_all(12)
    state = backend.get_rng_state()
    assert state.item() == 12
    backend.set_rng_state(state + 1)
    assert backend.get_rng_state().item() == 13
    assert backend.free_and_total_bytes() == (60, 100)


def test_xla_random_states_have_64_bits_without_a_sign(calls):
    backend = device_backend("xla")
    backend.seed_all(2**64 - 3)
    state = backend.get_rng_state()
    assert state.item() == -3
    backend.set_rng_state(state)
    assert sys.modules["torch_xla.core.xla_model"].get_rng_state() == 2**64 - 3


def test_xla_refuses_fp16(calls):
    backend = device_backend("xla")
    assert backend.supports(torch.bfloat16)
    assert not backend.supports(torch.float16)


def test_xla_is_not_available_without_the_package():
    assert "`torch-xla` is not installed" in device_backend("xla").unavailable_reason()
