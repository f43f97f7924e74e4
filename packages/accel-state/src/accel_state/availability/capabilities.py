"""What the device at hand can do; like `devices`, these functions ask torch and import it when called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from accel_state.availability.devices import (
    EXTENSIONS,
    is_cuda_available,
    is_habana_gaudi1,
    is_mps_available,
    is_torch_xla_available,
    is_xpu_available,
    torch_module,
    why_not_extension,
)
from accel_state.availability.packages import is_transformer_engine_available
from accel_state.versions import is_torch_version

_XCCL_VERSION = "2.7.0"


def is_xccl_available() -> bool:
    """Whether this torch has the collectives for Intel GPUs built in."""
    if not is_torch_version(">=", _XCCL_VERSION):
        return False
    from torch.distributed.distributed_c10d import is_xccl_available as is_built

    return bool(is_built())


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    """Whether the device at hand computes in bf16; a TPU counts unless ``ignore_tpu``."""
    import torch

    if is_torch_xla_available(check_is_tpu=True):
        return not ignore_tpu
    if is_cuda_available():
        return bool(torch.cuda.is_bf16_supported())
    if is_mps_available():
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    # Vendors whose devices differ have this function; CPUs and the other devices all compute in bf16.
    for name in EXTENSIONS:
        if why_not_extension(name) is None:
            ask = getattr(torch_module(EXTENSIONS[name].torch_module), "is_bf16_supported", None)
            return ask is None or bool(ask())
    return True


def is_fp16_available() -> bool:
    """Whether the device at hand computes in fp16; all do but Gaudi of the first generation."""
    return not is_habana_gaudi1()


def is_transformer_engine_mxfp8_available() -> bool:
    """Whether Transformer Engine is installed and the GPU scales 8-bit numbers in blocks (Blackwell)."""
    if not is_transformer_engine_available() or not is_cuda_available():
        return False
    import torch

    return torch.cuda.get_device_capability() >= (10, 0)


def check_cuda_fp8_capability() -> bool:
    """Whether the current CUDA device multiplies 8-bit numbers (compute capability 8.9 or higher)."""
    if not is_cuda_available():
        return False
    import torch

    return torch.version.hip is not None or torch.cuda.get_device_capability() >= (8, 9)


def get_current_device_type() -> tuple[str, str]:
    """Return the device type of this machine and the distributed type of several such, as two strings."""
    checks: dict[str, Callable[[], bool]] = {
        "cuda": is_cuda_available,
        "xpu": is_xpu_available,
        **{name: partial(_is_extension_available, name) for name in EXTENSIONS},
    }
    for name, check in checks.items():
        if check():
            return name, "MULTI_GPU" if name == "cuda" else f"MULTI_{name.upper()}"
    if is_mps_available():
        return "mps", "NO"
    return "cpu", "MULTI_CPU"


def _is_extension_available(name: str) -> bool:
    return why_not_extension(name) is None
