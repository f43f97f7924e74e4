"""Which devices are available.

These functions ask torch, and so import it: inside of each check, and only where the metadata of the vendor's package
has not answered no already.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from accel_state.devices.vendors import find_vendor
from accel_state.errors import ConfigError
from accel_state.versions import is_torch_version


def why_no_device(name: str, *, check_device: bool = False) -> str | None:
    """Say why this process can use no device that torch calls ``name``, None if it can.

    CUDA is not initialised by asking, so that the process can still fork.

    Args:
        name: Such as ``cuda``; see `accel_state.devices.vendors`.
        check_device: Ask for the number of devices too, which may start the vendor's runtime.

    Raises:
        UnknownNameError: If no vendor has the name.
    """
    reason = find_vendor(name).why_not_installed()
    if reason is not None:
        return reason
    from accel_state.devices.selection import device_backend

    return device_backend(name).why_not(check_device=check_device)


def why_not_mps(min_version: str = "1.12") -> str | None:
    """Say why the GPU of an Apple machine cannot be used, None if it can."""
    if not is_torch_version(">=", min_version):
        import torch

        return f"`torch` is too old: found {torch.__version__}, need {min_version} or newer."
    return why_no_device("mps")


def why_not_torch_distributed() -> str | None:
    """Say why processes cannot work together, None if they can."""
    import torch.distributed

    if torch.distributed.is_available():
        return None
    return (
        f"This torch ({torch.__version__}) is built without `torch.distributed`. Install a build that has it."
    )


def why_not_torch_xla() -> str | None:
    """Say why PyTorch/XLA cannot or must not be used, None if it can."""
    return find_vendor("xla").why_not_installed()


def is_cuda_available() -> bool:
    """Whether a CUDA or ROCm device can be used; CUDA is not initialised, so the process can still fork."""
    return why_no_device("cuda") is None


def is_mps_available(min_version: str = "1.12") -> bool:
    """Whether the GPU of an Apple machine can be used and torch is at least ``min_version``."""
    return why_not_mps(min_version) is None


def _check(name: str) -> Callable[..., bool]:
    def is_available(check_device: bool = False) -> bool:
        return why_no_device(name, check_device=check_device) is None

    is_available.__name__ = is_available.__qualname__ = f"is_{name}_available"
    is_available.__doc__ = f"Whether a device of the kind {find_vendor(name).title} can be used."
    return is_available


is_xpu_available = _check("xpu")
is_npu_available = _check("npu")
is_mlu_available = _check("mlu")
is_musa_available = _check("musa")
is_sdaa_available = _check("sdaa")
is_neuron_available = _check("neuron")


def is_hpu_available(init_hccl: bool = False) -> bool:
    """Whether a Habana HPU can be used; ``init_hccl`` also makes its collectives known to torch."""
    if why_no_device("hpu") is not None:
        return False
    if init_hccl:
        import_module("habana_frameworks.torch.distributed.hccl")
    return True


def is_habana_gaudi1() -> bool:
    """Whether the HPU is a Gaudi of the first generation."""
    if not is_hpu_available():
        return False
    experimental = import_module("habana_frameworks.torch.utils.experimental")
    return bool(experimental._get_device_type() == experimental.synDeviceType.synDeviceGaudi)


def is_torch_xla_available(check_is_tpu: bool = False, check_is_gpu: bool = False) -> bool:
    """Whether PyTorch/XLA is installed, not switched off and, if asked, runs on a TPU or on a GPU.

    Raises:
        ConfigError: If both are asked for.
    """
    if check_is_tpu and check_is_gpu:
        raise ConfigError("`check_is_tpu` and `check_is_gpu` cannot both be true. Ask twice instead.")
    if why_not_torch_xla() is not None:
        return False
    if not (check_is_tpu or check_is_gpu):
        return True
    device_type = import_module("torch_xla.runtime").device_type()
    return device_type == "TPU" if check_is_tpu else device_type in ("CUDA", "ROCM", "GPU")


def is_torch_distributed_available() -> bool:
    """Whether this torch can run several processes together."""
    return why_not_torch_distributed() is None


def is_rocm_available() -> bool:
    """Whether an AMD GPU can be used."""
    import torch

    return torch.version.hip is not None and is_cuda_available()
