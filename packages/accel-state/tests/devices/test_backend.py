"""All vendors that are driven through `torch.<name>`, on a stand-in with its documented functions."""

import sys
import warnings
from functools import partial

import pytest
import torch

from accel_state.devices import (
    current_device_backend,
    device_backend,
    device_backend_of,
    known_vendors,
    require_device_backend,
)
from accel_state.devices.backend import DeviceBackend, import_error
from accel_state.devices.cpu import CpuBackend
from accel_state.enums import DistributedType
from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError
from accel_state.topology import Topology
from tools.harness.scripts import run_script
from tools.harness.vendor_modules import GIB, vendor_module

# Name, package that adds `torch.<name>`, process group backend, the run's name in users' code.
VENDORS = [
    ("cuda", None, "cpu:gloo,cuda:nccl", "MULTI_GPU"),
    ("hpu", "habana_frameworks.torch", "hccl", "MULTI_HPU"),
    ("mlu", "torch_mlu", "cncl", "MULTI_MLU"),
    ("musa", "torch_musa", "mccl", "MULTI_MUSA"),
    ("neuron", "torch_neuronx", "neuron", "MULTI_NEURON"),
    ("npu", "torch_npu", "hccl", "MULTI_NPU"),
    ("sdaa", "torch_sdaa", "tccl", "MULTI_SDAA"),
    ("xpu", None, "cpu:gloo,xpu:xccl", "MULTI_XPU"),
]
RENAMED = [vendor for vendor in VENDORS if vendor[0] not in ("cuda", "hpu", "xpu")]


@pytest.fixture
def vendor(request):
    """Put the stand-in in the place of `torch.<name>`, which has no function that the vendor does not document."""
    name = request.param[0]
    with vendor_module(name) as module:
        yield device_backend(name), module, request.param


every_vendor = pytest.mark.parametrize("vendor", VENDORS, indirect=True, ids=lambda vendor: vendor[0])


@every_vendor
def test_vendor_is_found_and_named(vendor):
    backend, _, (name, _, collective_backend, distributed_type) = vendor
    assert isinstance(backend, DeviceBackend)
    assert backend.unavailable_reason() is None
    assert backend.count() == 2
    assert (backend.name, backend.collective_backend) == (name, collective_backend)
    assert backend.distributed_type == distributed_type


@every_vendor
def test_random_state_is_the_vendors(vendor):
    backend, module, _ = vendor
    backend.seed_all(7)
    state = backend.get_rng_state()
    assert torch.equal(state, torch.Generator().manual_seed(7).get_state())
    backend.seed_all(8)
    backend.set_rng_state(state)
    assert torch.equal(backend.get_rng_state(), state)
    assert module.calls[:2] == ["manual_seed_all", "get_rng_state"]


@every_vendor
def test_memory_is_the_vendors(vendor):
    backend, _, (name, *_) = vendor
    if name == "neuron":
        with pytest.raises(
            NotAvailableError, match="`torch.neuron` does not report the free memory .* `max_memory`"
        ):
            backend.free_and_total_bytes()
    else:
        assert backend.free_and_total_bytes(torch.device("cpu")) == (12 * GIB, 16 * GIB)


@every_vendor
def test_the_cache_is_emptied(vendor):
    backend, module, (name, *_) = vendor
    backend.empty_cache()
    assert module.calls == ([] if name == "hpu" else ["empty_cache"])


@every_vendor
def test_every_vendor_is_cast_to_both_formats_of_16_bits_where_its_chip_has_them(vendor):
    backend, _, _ = vendor
    assert [backend.why_not_dtype(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)] == [
        None
    ] * 3


@pytest.mark.parametrize(
    "vendor",
    [vendor for vendor in VENDORS if vendor[0] not in ("hpu", "neuron")],
    indirect=True,
    ids=lambda vendor: vendor[0],
)
def test_a_chip_without_bf16_is_refused_even_where_torch_would_emulate_it(vendor):
    backend, module, _ = vendor
    module.has_bf16 = False
    assert not backend.supports(torch.bfloat16)
    assert "Here bf16 needs" in backend.why_not_dtype(torch.bfloat16)
    assert backend.supports(torch.float16)


@pytest.mark.parametrize("vendor", VENDORS[2:7], indirect=True, ids=lambda vendor: vendor[0])
def test_what_autocast_of_the_vendor_does_not_take_is_refused(vendor):
    backend, module, _ = vendor
    module.castable = [torch.bfloat16]
    assert backend.why_not_dtype(torch.float16) == "Here fp16 needs a package that has it."


@every_vendor
def test_8_bits_are_offered_on_gpus_that_multiply_them(vendor):
    backend, module, (name, *_) = vendor
    assert backend.supports(torch.float8_e4m3fn) == (name == "cuda")
    module.capability = (8, 0)
    reason = backend.why_not_dtype(torch.float8_e4m3fn)
    assert ("Here fp8 needs compute capability 8.9" in reason) == (name == "cuda")


@pytest.mark.parametrize("vendor", [VENDORS[1]], indirect=True, ids=["hpu"])
def test_the_first_gaudi_has_no_fp16(vendor, monkeypatch):
    backend, _, _ = vendor
    monkeypatch.setattr(
        sys.modules["habana_frameworks.torch.utils.experimental"], "_get_device_type", lambda: 1
    )
    assert backend.why_not_dtype(torch.float16) == "Here fp16 needs Gaudi 2 or newer."


@every_vendor
def test_what_the_vendor_does_not_document_is_not_there(vendor):
    _, module, (name, *_) = vendor
    with pytest.raises(AttributeError, match=f"`torch.{name}.memory_usage` is not among the functions"):
        module.memory_usage()


@pytest.mark.parametrize("vendor", [VENDORS[0], VENDORS[-1]], indirect=True, ids=["cuda", "xpu"])
def test_each_process_gets_its_own_device(vendor):
    backend, module, (name, *_) = vendor
    device = backend.place(Topology(rank=1, world_size=2, local_rank=1, local_world_size=2))
    assert device == torch.device(name, 1)
    backend.set_device(device)
    assert module.current_device() == 1


@every_vendor
def test_more_processes_than_devices_are_refused(vendor):
    backend, _, (name, *_) = vendor
    for local_rank in range(3):
        with pytest.raises(
            ConfigError,
            match=f"3 processes run on this machine, but each of them sees 2 `{name}` dev.*`cpu=True`",
        ):
            backend.place(Topology(local_rank, 3, local_rank, 3))


@pytest.mark.parametrize("vendor", [VENDORS[0]], indirect=True, ids=["cuda"])
@pytest.mark.parametrize("source", ["slurm", "torchrun", "openmpi"])
def test_a_process_that_is_shown_one_device_uses_it(vendor, monkeypatch, source):
    backend, module, _ = vendor
    monkeypatch.setattr(module, "device_count", lambda: 1)
    assert backend.place(Topology(1, 2, 1, 2, source=source)) == torch.device("cuda", 0)


@pytest.mark.parametrize("name", [vendor[0] for vendor in VENDORS])
def test_nothing_is_available_on_a_machine_without_the_vendor(name):
    backend = device_backend(name)
    if name in ("cuda", "xpu"):
        assert (backend.unavailable_reason() is None) == getattr(torch, name).is_available()
    else:
        assert "is not installed. Run `pip install" in backend.unavailable_reason()


def test_package_that_cannot_be_imported_is_tried_and_warned_about_once(monkeypatch, tmp_path):
    (tmp_path / "broken_vendor.py").write_text(
        "raise OSError('libdriver.so: cannot open shared object file')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="`broken_vendor` is installed but cannot be imported.*libdriver.so"):
        first = import_error("broken_vendor")
    (tmp_path / "broken_vendor.py").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert import_error("broken_vendor") == first
    assert import_error("json") is None


PLACING = """
import sys, types, torch
name, plugin = sys.argv[1:]
torch.utils.rename_privateuse1_backend(name)
sys.modules[plugin] = types.ModuleType(plugin)
fake = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, set_device=print)
setattr(torch, name, fake)
from accel_state.partial_state import PartialState
state = PartialState()
print(state.device, state.distributed_type, state.default_device)
from accel_state.devices import device_backend_of
from accel_state.topology import Topology
print(device_backend_of(state.device).place(Topology(1, 2, 1, 2)))
"""


def placed(folder, *, name, plugin):
    """In a separate process: torch's spare device type can be given a name only once."""
    script = folder / "place.py"
    script.write_text(PLACING)
    return name, run_script(script, name, plugin, timeout_s=60)


@pytest.mark.parametrize(
    "outcome",
    [partial(placed, name=name, plugin=plugin) for name, plugin, *_ in RENAMED],
    ids=[name for name, *_ in RENAMED],
    indirect=True,
)
def test_state_of_a_process_is_built_on_the_vendors_device(outcome):
    name, ran = outcome
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [f"{name}:0", f"{name}:0", "NO", f"{name}:0", f"{name}:1"]


def test_fp64_is_where_the_properties_of_the_device_do_not_deny_it():
    with vendor_module("xpu") as module:
        assert device_backend("xpu").supports(torch.float64)
        module.has_fp64 = False
        assert device_backend("xpu").supports(torch.float32)
        assert (
            device_backend("xpu").why_not_dtype(torch.float64)
            == "This Intel GPU has no 64-bit floating point."
        )
    with vendor_module("cuda"):
        assert device_backend("cuda").supports(torch.float64)


def test_every_vendor_has_a_backend_that_follows_the_protocol():
    names = [vendor.name for vendor in known_vendors()]
    assert names[-1] == "cpu"
    assert len(names) == 11
    for name in names:
        assert device_backend(name).name == name
        assert isinstance(device_backend(name), DeviceBackend)
        assert device_backend(name).distributed_type in DistributedType


def test_same_object_serves_all():
    assert device_backend("cpu") is device_backend_of(torch.device("cpu")) is current_device_backend(cpu=True)


def test_first_available_is_chosen(monkeypatch):
    monkeypatch.setattr(device_backend("xpu"), "unavailable_reason", lambda: None)
    monkeypatch.setattr(device_backend("mps"), "unavailable_reason", lambda: None)
    monkeypatch.setattr(device_backend("cuda"), "unavailable_reason", lambda: "It is switched off.")
    assert current_device_backend().name == "xpu"
    assert isinstance(current_device_backend(cpu=True), CpuBackend)


def test_unknown_device_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Unknown device `cudo`.*Did you mean `cuda`"):
        device_backend("cudo")


def test_device_that_is_not_here_is_refused_with_those_that_are(monkeypatch):
    monkeypatch.setattr(device_backend("mps"), "unavailable_reason", lambda: "It is switched off.")
    with pytest.raises(
        NotAvailableError,
        match="`mps` was requested, but none is available: It is switched off. Available: .*cpu",
    ):
        require_device_backend("mps")
