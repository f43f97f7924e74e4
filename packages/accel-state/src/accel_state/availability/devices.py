"""Which devices are available.

Unlike its siblings this module asks torch, and so imports it: inside of each check, and only where the
metadata of the vendor's package has not answered no already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from accel_state.availability.reasons import Package, why_package_not
from accel_state.environment import patch_environment
from accel_state.errors import ConfigError
from accel_state.versions import is_torch_version


class Extension(NamedTuple):
    """A vendor's package that adds a device to torch when it is imported.

    ``packages``: any one will do. ``imports``: what to import. ``torch_module``: the name under `torch`.
    """

    title: str
    packages: tuple[Package, ...]
    imports: tuple[str, ...]
    torch_module: str


EXTENSIONS: Mapping[str, Extension] = MappingProxyType(
    {
        "hpu": Extension(
            "Habana HPU",
            (
                Package("habana_frameworks", ("habana-torch-plugin",)),
                Package("habana_frameworks", ("habana_frameworks",)),
            ),
            ("habana_frameworks.torch",),
            "hpu",
        ),
        "mlu": Extension("Cambricon MLU", (Package("torch_mlu", ("torch-mlu",)),), ("torch_mlu",), "mlu"),
        "musa": Extension(
            "Moore Threads MUSA", (Package("torch_musa", ("torch-musa",)),), ("torch_musa",), "musa"
        ),
        "neuron": Extension(
            "AWS Neuron", (Package("torch_neuronx", ("torch-neuronx",)),), ("torch_neuronx",), "neuron"
        ),
        "npu": Extension("Ascend NPU", (Package("torch_npu", ("torch-npu",)),), ("torch_npu",), "npu"),
        "sdaa": Extension(
            "Tecorigin SDAA", (Package("torch_sdaa", ("torch-sdaa",)),), ("torch_sdaa",), "sdaa"
        ),
    }
)
_XLA = Package("torch_xla", ("torch-xla",))


def why_not_cuda() -> str | None:
    """Why no CUDA or ROCm device can be used, None if one can.

    CUDA is not initialised by asking, so that the process can still fork.
    """
    import torch

    with patch_environment(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
        if torch.cuda.is_available():
            return None
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"This torch ({torch.__version__}) is built without CUDA and ROCm. Install a build that has them."
        )
    return "torch finds no CUDA device. Check the driver with `nvidia-smi` and `CUDA_VISIBLE_DEVICES`."


def why_not_mps(min_version: str = "1.12") -> str | None:
    """Why the GPU of an Apple machine cannot be used, None if it can."""
    import torch

    if not is_torch_version(">=", min_version):
        return f"`torch` is too old: found {torch.__version__}, need {min_version} or newer."
    if not torch.backends.mps.is_built():
        return f"This torch ({torch.__version__}) is built without MPS."
    if not torch.backends.mps.is_available():
        return "torch finds no MPS device. It needs macOS 12.3 or newer and a GPU that Metal supports."
    return None


def why_not_xpu() -> str | None:
    """Why no Intel GPU can be used, None if one can."""
    import torch

    if torch.xpu.is_available():
        return None
    return "torch finds no XPU device. It needs a torch built for XPU and Intel's GPU driver."


def why_not_extension(name: str, *, check_device: bool = False) -> str | None:
    """Why the device of a vendor's package cannot be used, None if it can.

    Args:
        name: A key of `EXTENSIONS`.
        check_device: Ask for the number of devices too, which starts the vendor's runtime.
    """
    extension = EXTENSIONS[name]
    reasons = [why_package_not(package) for package in extension.packages]
    if None not in reasons:
        return f"No {extension.title}: {reasons[0]}"
    for module in extension.imports:
        import_module(module)
    device_module = torch_module(extension.torch_module)
    if device_module is None:
        return f"`{extension.imports[0]}` was imported, but `torch.{extension.torch_module}` is not there."
    present = device_module.device_count() > 0 if check_device else device_module.is_available()
    return None if present else f"`torch.{extension.torch_module}` finds no {extension.title}."


def why_not_xla() -> str | None:
    """Why PyTorch/XLA cannot be used, None if it can."""
    return why_package_not(_XLA)


def why_not_torch_distributed() -> str | None:
    """Why processes cannot work together, None if they can."""
    import torch.distributed

    if torch.distributed.is_available():
        return None
    return (
        f"This torch ({torch.__version__}) is built without `torch.distributed`. Install a build that has it."
    )


def is_cuda_available() -> bool:
    """Whether a CUDA or ROCm device can be used; CUDA is not initialised, so the process can still fork."""
    return why_not_cuda() is None


def is_mps_available(min_version: str = "1.12") -> bool:
    """Whether the GPU of an Apple machine can be used and torch is at least ``min_version``."""
    return why_not_mps(min_version) is None


def is_xpu_available(check_device: bool = False) -> bool:
    """Whether an Intel GPU can be used."""
    if why_not_xpu() is not None:
        return False
    import torch

    return torch.xpu.device_count() > 0 if check_device else True


def is_npu_available(check_device: bool = False) -> bool:
    """Whether an Ascend NPU can be used."""
    return why_not_extension("npu", check_device=check_device) is None


def is_mlu_available(check_device: bool = False) -> bool:
    """Whether a Cambricon MLU can be used."""
    return why_not_extension("mlu", check_device=check_device) is None


def is_musa_available(check_device: bool = False) -> bool:
    """Whether a Moore Threads GPU can be used."""
    return why_not_extension("musa", check_device=check_device) is None


def is_sdaa_available(check_device: bool = False) -> bool:
    """Whether a Tecorigin SDAA can be used."""
    return why_not_extension("sdaa", check_device=check_device) is None


def is_neuron_available(check_device: bool = False) -> bool:
    """Whether an AWS Neuron core can be used."""
    return why_not_extension("neuron", check_device=check_device) is None


def is_hpu_available(init_hccl: bool = False) -> bool:
    """Whether a Habana HPU can be used; ``init_hccl`` also makes its collectives known to torch."""
    if why_not_extension("hpu") is not None:
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
    """Whether PyTorch/XLA is installed and, if asked, runs on a TPU or on a GPU.

    Raises:
        ConfigError: If both are asked for.
    """
    if check_is_tpu and check_is_gpu:
        raise ConfigError("`check_is_tpu` and `check_is_gpu` cannot both be true. Ask twice instead.")
    if why_not_xla() is not None:
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


def torch_module(name: str) -> Any:
    """Return `torch.<name>`, where vendors' packages put what they bring, None if it is not there."""
    import torch

    return getattr(torch, name, None)


WHY_NOT: Mapping[str, Callable[[], str | None]] = MappingProxyType(
    {
        "cuda": why_not_cuda,
        "mps": why_not_mps,
        "torch_distributed": why_not_torch_distributed,
        "torch_xla": why_not_xla,
        "xpu": why_not_xpu,
        **{name: partial(why_not_extension, name) for name in EXTENSIONS},
    }
)
