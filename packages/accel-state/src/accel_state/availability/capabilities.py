"""What the device at hand can do; like `devices`, these functions ask torch and import it when called."""

from __future__ import annotations

from accel_state.availability.devices import (
    is_cuda_available,
    is_habana_gaudi1,
    is_torch_xla_available,
    why_no_device,
)
from accel_state.availability.packages import is_transformer_engine_available
from accel_state.devices.vendors import known_vendors


def is_xccl_available() -> bool:
    """Whether this torch has the collectives for Intel GPUs built in."""
    from torch.distributed.distributed_c10d import is_xccl_available as is_built

    return bool(is_built())


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    """Whether the device at hand computes in bf16; a TPU counts unless ``ignore_tpu``."""
    if is_torch_xla_available(check_is_tpu=True):
        return not ignore_tpu
    import torch

    from accel_state.devices.selection import device_backend

    name, _ = get_current_device_type()
    return device_backend(name).supports(torch.bfloat16)


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

    from accel_state.devices.selection import device_backend

    return device_backend("cuda").supports(torch.float8_e4m3fn)


def get_current_device_type() -> tuple[str, str]:
    """Return the device type of this machine and the distributed type of several such, as two strings."""
    known = [vendor for vendor in known_vendors() if vendor.name != "xla"]
    here = next(vendor for vendor in known if why_no_device(vendor.name) is None)
    return here.name, here.distributed_type
