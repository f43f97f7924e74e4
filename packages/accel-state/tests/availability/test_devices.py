from __future__ import annotations

import sys
import types

import pytest
import torch

from accel_state.availability import devices
from accel_state.environment import variable
from accel_state.errors import ConfigError


@pytest.fixture
def fake_npu(tmp_path, monkeypatch):
    """A vendor's package as torch knows it: importing `torch_npu` puts `torch.npu` there."""
    info = tmp_path / "torch_npu-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n")
    (tmp_path / "torch_npu.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = types.SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 0, is_bf16_supported=lambda: False
    )
    monkeypatch.setattr(torch, "npu", module, raising=False)
    yield module
    sys.modules.pop("torch_npu", None)


def test_a_vendors_device_is_available_when_its_module_says_so(fake_npu):
    assert devices.is_npu_available()
    assert devices.WHY_NOT["npu"]() is None
    fake_npu.is_available = lambda: False
    assert not devices.is_npu_available()
    assert devices.WHY_NOT["npu"]() == "`torch.npu` finds no Ascend NPU."


def test_check_device_counts_devices(fake_npu):
    assert not devices.is_npu_available(check_device=True)
    fake_npu.device_count = lambda: 2
    assert devices.is_npu_available(check_device=True)


def test_a_package_that_brings_no_torch_module_is_told_apart(fake_npu, monkeypatch):
    monkeypatch.delattr(torch, "npu")
    assert devices.WHY_NOT["npu"]() == "`torch_npu` was imported, but `torch.npu` is not there."


@pytest.mark.parametrize("name", devices.EXTENSIONS)
def test_without_the_vendors_package_the_answer_is_no_and_says_what_to_install(name):
    reason = devices.WHY_NOT[name]()
    if reason is None:
        pytest.skip("needs a machine without an accelerator")
    check = getattr(devices, f"is_{name}_available")
    assert check() is False
    assert reason.startswith(f"No {devices.EXTENSIONS[name].title}: `")
    assert "is not installed. Run `pip install" in reason


def test_cuda_is_asked_without_initialising_it_and_the_variable_is_put_back(monkeypatch):
    before = variable("PYTORCH_NVML_BASED_CUDA_CHECK")
    seen = []
    monkeypatch.setattr(
        torch.cuda, "is_available", lambda: seen.append(variable("PYTORCH_NVML_BASED_CUDA_CHECK")) or True
    )
    assert devices.is_cuda_available()
    assert seen == ["1"]
    assert variable("PYTORCH_NVML_BASED_CUDA_CHECK") == before


def test_without_cuda_the_reason_tells_build_from_driver(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "is built without CUDA and ROCm" in devices.why_not_cuda()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "finds no CUDA device" in devices.why_not_cuda()


def test_rocm_is_a_gpu_of_a_torch_built_for_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert devices.is_rocm_available()
    monkeypatch.setattr(torch.version, "hip", None)
    assert not devices.is_rocm_available()


def test_mps_needs_the_version_asked_for():
    assert devices.is_mps_available(min_version="99.0") is False
    assert "need 99.0 or newer" in devices.why_not_mps("99.0")


def test_xla_cannot_be_asked_for_two_kinds_at_once():
    with pytest.raises(ConfigError, match="`check_is_tpu` and `check_is_gpu` cannot both be true"):
        devices.is_torch_xla_available(check_is_tpu=True, check_is_gpu=True)


def test_processes_of_this_torch_can_work_together():
    assert devices.is_torch_distributed_available() is torch.distributed.is_available()
