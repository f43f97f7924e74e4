"""The device that tests run on: the CPU, everywhere alike, or in a second pass the accelerator of the machine."""

from __future__ import annotations

import os

_VARIABLE = "ACCEL_TEST_DEVICE"
_HIDING = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES",
    "MLU_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES", "SDAA_VISIBLE_DEVICES",
)  # fmt: skip


def device_type() -> str:
    """Return ``cuda`` in the second pass, else ``cpu``."""
    return os.environ.get(_VARIABLE) or "cpu"


def is_device_pass() -> bool:
    """Whether only tests of the device are to run: the variable is set, to any value."""
    return bool(os.environ.get(_VARIABLE))


def on_cpu() -> bool:
    """Whether tests run on the CPU."""
    return device_type() == "cpu"


def hide_accelerators() -> None:
    """Hide accelerators from this process and its children, except one for tests; before torch is imported."""
    if on_cpu():
        os.environ.update(dict.fromkeys(_HIDING, ""))
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
