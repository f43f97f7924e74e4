"""Choosing the kind of device."""

import pytest
import torch

from accel_state.devices.cpu import CpuBackend
from accel_state.devices.protocol import DeviceBackend
from accel_state.devices.selection import (
    current_device_backend,
    device_backend,
    device_backend_names,
    device_backend_of,
    require_device_backend,
)
from accel_state.errors import NotAvailableError, UnknownNameError


def test_every_member_has_the_name_it_is_known_by_and_follows_the_protocol():
    names = device_backend_names()
    assert names[-1] == "cpu"
    assert len(names) == 11
    for name in names:
        assert device_backend(name).name == name
        assert isinstance(device_backend(name), DeviceBackend)


def test_same_object_serves_all():
    assert device_backend("cpu") is device_backend_of(torch.device("cpu")) is current_device_backend(cpu=True)


def test_first_available_is_chosen(monkeypatch):
    monkeypatch.setattr(type(device_backend("xpu")), "is_available", lambda self: True)
    monkeypatch.setattr(type(device_backend("mps")), "is_available", lambda self: True)
    monkeypatch.setattr(type(device_backend("cuda")), "is_available", lambda self: False)
    assert current_device_backend().name == "xpu"
    assert isinstance(current_device_backend(cpu=True), CpuBackend)


def test_unknown_device_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Unknown device `cudo`.*Did you mean `cuda`"):
        device_backend("cudo")


def test_device_that_is_not_here_is_refused_with_those_that_are(monkeypatch):
    monkeypatch.setattr(type(device_backend("mps")), "is_available", lambda self: False)
    with pytest.raises(
        NotAvailableError, match="`mps` was asked for, but none is available here. Available: .*cpu"
    ):
        require_device_backend("mps")
