from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends import AORecipeKwargs, AutocastKwargs, GradScalerKwargs, collect, select_precision
from accel_backends.precisions.precision import PRECISIONS
from accel_state.devices import device_backend, find_vendor
from accel_state.devices.cpu import CpuBackend
from accel_state.enums import PrecisionType
from accel_state.errors import ConfigError, UnknownNameError
from tools.harness.vendor_modules import vendor_module

CPU = device_backend("cpu")


class OldDevice(CpuBackend):
    """A CPU that only knows full precision."""

    def why_not_dtype(self, dtype: torch.dtype) -> str | None:
        return None if dtype is torch.float32 else "It is old."


class DeviceWithoutAutocast(CpuBackend):
    name = "meta"


@pytest.mark.parametrize("name", ["no", "bf16", "fp16", PrecisionType.BF16])
def test_members_are_found_by_name_and_by_enum(name):
    assert select_precision(name, device_backend=CPU).name == str(name)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Unknown precision `bf61`.*Did you mean `bf16`"):
        select_precision("bf61", device_backend=CPU)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("device", [OldDevice(find_vendor("cpu")), DeviceWithoutAutocast(find_vendor("cpu"))])
def test_a_device_that_cannot_is_refused_by_name_with_a_hint(name, device):
    expected = (
        f"`mixed_precision={name}` is not supported on this `{device.name}` device. .*Use another precision"
    )
    with pytest.raises(ConfigError, match=expected):
        select_precision(name, device_backend=device)


@pytest.mark.parametrize(
    ("device", "needed"),
    [("cuda", "compute capability 8.0 or higher"), ("xpu", "a GPU that converts to it")],
)
def test_what_a_chip_has_not_is_refused_when_the_precision_is_made(device, needed):
    expected = f"`mixed_precision=bf16` is not supported on this `{device}` device. Here bf16 needs {needed}.*Use anot"
    with vendor_module(device) as module:
        module.has_bf16 = False
        with pytest.raises(ConfigError, match=expected):
            select_precision("bf16", device_backend=device_backend(device))


def test_fp16_on_the_cpu_is_refused_unless_it_is_to_be_tried_out(monkeypatch):
    monkeypatch.delenv("ACCEL_FP16_ON_CPU")
    with pytest.raises(
        ConfigError, match="`mixed_precision=fp16` is not .*`cpu` .*`ACCEL_FP16_ON_CPU=true`, to try"
    ):
        select_precision("fp16", device_backend=CPU)
    monkeypatch.setenv("ACCEL_FP16_ON_CPU", "true")
    assert select_precision("fp16", device_backend=CPU).scaler.is_enabled()


@pytest.mark.parametrize(
    ("name", "handler"),
    [
        ("no", AutocastKwargs()),
        ("no", GradScalerKwargs()),
        ("bf16", GradScalerKwargs()),
        ("bf16", AORecipeKwargs()),
    ],
)
def test_a_handler_without_effect_is_reported(name, handler):
    with pytest.warns(UserWarning, match=f"`{type(handler).__name__}` has no effect.*{name}"):
        select_precision(name, device_backend=CPU, handlers=collect([handler]))


def test_a_third_party_adds_a_precision():
    class Mine:
        name = "mine"
        reads_handlers = ()

        def __init__(self, *, device_backend, handlers):
            self.device_backend = device_backend

    PRECISIONS.register("mine", Mine)
    try:
        assert select_precision("mine", device_backend=CPU).device_backend is CPU
    finally:
        PRECISIONS.unregister("mine")


def test_full_precision_changes_nothing():
    precision = select_precision("no", device_backend=CPU)
    model = nn.Linear(2, 2)
    loss = torch.ones((), requires_grad=True)
    assert precision.convert(model) is model
    assert "forward" not in model.__dict__
    assert precision.scale(loss) is loss
    assert (precision.scaler, precision.dtype, precision.state_dict()) == (None, None, {})
    with precision.autocast():
        assert model(torch.ones(1, 2)).dtype is torch.float32
