from __future__ import annotations

import sys
import types

import pytest
import torch

from accel_state.availability import capabilities, devices


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


def test_bf16_is_asked_of_the_vendor(fake_npu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert not capabilities.is_bf16_available()
    del fake_npu.is_bf16_supported
    assert capabilities.is_bf16_available()


def test_the_device_type_is_the_vendors(fake_npu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert capabilities.get_current_device_type() == ("npu", "MULTI_NPU")


@pytest.mark.parametrize(("capability", "fp8", "mxfp8"), [((8, 0), False, False), ((9, 0), True, False)])
def test_cuda_capability_decides_on_fp8(monkeypatch, capability, fp8, mxfp8):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert capabilities.check_cuda_fp8_capability() is fp8
    assert capabilities.is_transformer_engine_mxfp8_available() is mxfp8


def test_cuda_comes_first_among_device_types(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert capabilities.get_current_device_type() == ("cuda", "MULTI_GPU")


def test_a_machine_without_accelerator_computes_on_the_cpu_in_both_short_formats():
    if capabilities.get_current_device_type() != ("cpu", "MULTI_CPU"):
        pytest.skip("needs a machine without an accelerator")
    assert capabilities.is_bf16_available()
    assert capabilities.is_fp16_available()
    assert not devices.is_rocm_available()
    assert not capabilities.is_xccl_available()
    assert not capabilities.check_cuda_fp8_capability()
