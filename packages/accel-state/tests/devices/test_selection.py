"""Choosing the kind of device."""

import pytest
import torch

from accel_state.devices import (
    current_device_backend,
    device_backend,
    device_backend_of,
    known_vendors,
    require_device_backend,
)
from accel_state.devices.backend import DeviceBackend
from accel_state.devices.cpu import CpuBackend
from accel_state.enums import DistributedType
from accel_state.errors import NotAvailableError, UnknownNameError


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
    monkeypatch.setattr(device_backend("xpu"), "why_not", lambda: None)
    monkeypatch.setattr(device_backend("mps"), "why_not", lambda: None)
    monkeypatch.setattr(device_backend("cuda"), "why_not", lambda: "It is switched off.")
    assert current_device_backend().name == "xpu"
    assert isinstance(current_device_backend(cpu=True), CpuBackend)


def test_unknown_device_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Unknown device `cudo`.*Did you mean `cuda`"):
        device_backend("cudo")


def test_device_that_is_not_here_is_refused_with_those_that_are(monkeypatch):
    monkeypatch.setattr(device_backend("mps"), "why_not", lambda: "It is switched off.")
    with pytest.raises(
        NotAvailableError,
        match="`mps` was asked for, but none is available here: It is switched off. Available: .*cpu",
    ):
        require_device_backend("mps")
