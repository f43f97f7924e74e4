"""Which packages and devices are available, and if not, the reason.

Packages are looked up by their metadata, without an import. Checks of devices import torch when they are called, unless
the metadata of the vendor's package is missing.
"""

from __future__ import annotations

import functools
import logging
import platform
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import ParamSpec, TypeVar

from accel_state import versions
from accel_state.devices.vendors import find_vendor, known_vendors
from accel_state.environment import read
from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError
from accel_state.nvidia import check_cuda_p2p_ib_support as check_cuda_p2p_ib_support
from accel_state.nvidia import get_driver_version as get_driver_version
from accel_state.nvidia import get_gpu_info as get_gpu_info
from accel_state.versions import Package

P = ParamSpec("P")
R = TypeVar("R")
logger = logging.getLogger(__name__)
_OLDEST_LINUX = (5, 5, 0)

_REASONS: dict[str, Callable[[], str | None]] = {}
"""By short name, the function that returns why something that is no device is unavailable."""


def why_not(name: str) -> str | None:
    """Return why ``name`` is not available and what to do, None if it is available.

    Args:
        name: A package or device as in ``is_<name>_available``, such as ``deepspeed`` or ``cuda``, or the full name of
            the function. Only devices cause torch to be imported.

    Raises:
        UnknownNameError: If there is no such check.
    """
    short = name.removeprefix("is_").removesuffix("_available")
    if short in _REASONS:
        return _REASONS[short]()
    devices = [vendor.name for vendor in known_vendors()]
    if short in devices:
        return _no_device_reason(short)
    raise UnknownNameError.of("availability check", short, [*_REASONS, *devices])


# --- packages: by the name of the function, the module if it differs, and the package to install


def _check(name: str, description: str, reason: Callable[[], str | None]) -> Callable[[], bool]:
    """Return the check ``is_<name>_available``; ``reason`` returns why it is unavailable, None if it is available."""

    def is_available() -> bool:
        return reason() is None

    _REASONS[name] = reason
    is_available.__name__ = is_available.__qualname__ = f"is_{name}_available"
    is_available.__doc__ = description
    return is_available


def _package(
    name: str, *distributions: str, module: str | None = None, minimum: str | None = None
) -> Callable[[], bool]:
    """Return the check ``is_<name>_available`` for a package whose first distribution has its name by default."""
    package = Package(module or name, distributions or (name,), minimum)
    at_least = f", version {minimum} or newer" if minimum else ""
    description = f"Whether `{package.distributions[0]}` is installed{at_least}; not imported."
    return _check(name, description, package.unavailable_reason)


is_4bit_bnb_available = _package("4bit_bnb", "bitsandbytes", module="bitsandbytes", minimum="0.39.0")
is_8bit_bnb_available = _package("8bit_bnb", "bitsandbytes", module="bitsandbytes", minimum="0.37.2")
is_aim_available = _package("aim")
is_amdsmi_available = _package("amdsmi")
is_bitsandbytes_multi_backend_available = _package(
    "bitsandbytes_multi_backend", "bitsandbytes", module="bitsandbytes", minimum="0.46.0"
)
is_boto3_available = _package("boto3")
is_clearml_available = _package("clearml")
is_comet_ml_available = _package("comet_ml", "comet-ml")
is_datasets_available = _package("datasets")
is_deepspeed_available = _package("deepspeed", "deepspeed", "deepspeed-mlu")
is_dvclive_available = _package("dvclive")
is_import_timer_available = _package("import_timer", "import-timer")
is_lomo_available = _package("lomo", "lomo-optim", module="lomo_optim")
is_matplotlib_available = _package("matplotlib")
is_megatron_lm_available = _package("megatron_lm", "megatron-core", "megatron-lm", module="megatron")
is_mlflow_available = _package("mlflow", "mlflow", "mlflow-skinny")
is_msamp_available = _package("msamp", "ms-amp")
is_pandas_available = _package("pandas")
is_peft_available = _package("peft")
# `torch.distributed.pipelining` is part of torch since this version.
is_pippy_available = _package("pippy", "torch", module="torch", minimum="2.4.0")
is_pynvml_available = _package("pynvml", "nvidia-ml-py", "pynvml")
is_pytest_available = _package("pytest")
is_sagemaker_available = _package("sagemaker")
is_schedulefree_available = _package("schedulefree")
is_swanlab_available = _package("swanlab")
is_timm_available = _package("timm")
is_torchao_available = _package("torchao", minimum="0.6.1")
is_torchdata_available = _package("torchdata")
is_torchdata_stateful_dataloader_available = _package(
    "torchdata_stateful_dataloader", "torchdata", module="torchdata", minimum="0.8.0"
)
is_torchvision_available = _package("torchvision")
is_tqdm_available = _package("tqdm")
is_trackio_available = _package("trackio")
is_transformer_engine_available = _package(
    "transformer_engine", "transformer-engine", "transformer_engine_torch"
)
is_transformers_available = _package("transformers")
is_triton_available = _package("triton", "triton", "pytorch-triton", "triton-windows")
is_wandb_available = _package("wandb")
# `torch.load(weights_only=True)` accepts a list of safe classes since this version.
is_weights_only_available = _package("weights_only", "torch", module="torch", minimum="2.4.0")


def is_bnb_available(min_version: str | None = None) -> bool:
    """Whether bitsandbytes is installed, at least ``min_version`` if given; not imported."""
    return Package("bitsandbytes", ("bitsandbytes",), min_version).unavailable_reason() is None


def is_numpy_available(min_version: str = "1.25.0") -> bool:
    """Whether numpy is installed, at least ``min_version``; not imported."""
    return Package("numpy", ("numpy",), min_version).unavailable_reason() is None


def _no_fp8_reason() -> str | None:
    if is_transformer_engine_available() or is_torchao_available():
        return None
    return "No library for 8-bit training is installed. Run `pip install torchao`, or install Transformer Engine."


def _no_rich_reason() -> str | None:
    reason = Package("rich", ("rich",)).unavailable_reason()
    if reason is None and not read("enable_rich"):
        return "`rich` is installed but disabled. Set `ACCELERATE_ENABLE_RICH=true`."
    return reason


def _no_tensorboard_reason() -> str | None:
    package = Package("tensorboard", ("tensorboard",), install="tensorboard PyYAML")
    if Package("tensorboardX", ("tensorboardX",)).unavailable_reason() is None:
        return None
    return package.unavailable_reason()


is_fp8_available = _check(
    "fp8", "Whether a library for FP8 training is installed: Transformer Engine or torchao.", _no_fp8_reason
)
is_rich_available = _check(
    "rich", "Whether `rich` is installed and ``ACCELERATE_ENABLE_RICH`` enables it.", _no_rich_reason
)
is_tensorboard_available = _check(
    "tensorboard",
    "Whether TensorBoard's writer is installed, by `tensorboard` or `tensorboardX`; not imported.",
    _no_tensorboard_reason,
)
_REASONS |= {
    "bnb": Package("bitsandbytes", ("bitsandbytes",)).unavailable_reason,
    "numpy": Package("numpy", ("numpy",), "1.25.0").unavailable_reason,
    "torch_xla": find_vendor("xla").not_installed_reason,
}


# --- devices: of the vendors' table, through the class that drives them


def _device(name: str) -> Callable[..., bool]:
    """Return the check ``is_<name>_available`` for devices of the vendor ``name``."""

    def is_available(check_device: bool = False) -> bool:
        return _no_device_reason(name, check_device=check_device) is None

    is_available.__name__ = is_available.__qualname__ = f"is_{name}_available"
    is_available.__doc__ = f"Whether a device of the kind {find_vendor(name).label} can be used."
    return is_available


is_mlu_available = _device("mlu")
is_musa_available = _device("musa")
is_neuron_available = _device("neuron")
is_npu_available = _device("npu")
is_sdaa_available = _device("sdaa")
is_xpu_available = _device("xpu")


def is_cuda_available() -> bool:
    """Whether a CUDA or ROCm device can be used. CUDA is not initialized, so the process can still fork."""
    return _no_device_reason("cuda") is None


def is_rocm_available() -> bool:
    """Whether an AMD GPU can be used."""
    import torch

    return torch.version.hip is not None and is_cuda_available()


def is_mps_available(min_version: str = "1.12") -> bool:
    """Whether the GPU of an Apple machine can be used and torch is at least ``min_version``."""
    return versions.is_torch_version(">=", min_version) and _no_device_reason("mps") is None


def is_hpu_available(init_hccl: bool = False) -> bool:
    """Whether a Habana HPU can be used; ``init_hccl`` also registers its collectives with torch."""
    if _no_device_reason("hpu") is not None:
        return False
    if init_hccl:
        from accel_state.devices import device_backend

        device_backend("hpu").process_group_options()
    return True


def is_habana_gaudi1() -> bool:
    """Whether the HPU is a Gaudi of the first generation, which has no fp16."""
    return is_hpu_available() and not _supports("hpu", "float16")


def is_torch_xla_available(check_is_tpu: bool = False, check_is_gpu: bool = False) -> bool:
    """Whether PyTorch/XLA is installed, not disabled and, if requested, runs on a TPU or on a GPU.

    Raises:
        ConfigError: If both are requested.
    """
    if check_is_tpu and check_is_gpu:
        raise ConfigError("`check_is_tpu` and `check_is_gpu` cannot both be true. Ask twice instead.")
    if find_vendor("xla").not_installed_reason() is not None:
        return False
    if not (check_is_tpu or check_is_gpu):
        return True
    device_type = import_module("torch_xla.runtime").device_type()
    return device_type == "TPU" if check_is_tpu else device_type in ("CUDA", "ROCM", "GPU")


def is_xccl_available() -> bool:
    """Whether this torch has the collectives for Intel GPUs."""
    from torch.distributed.distributed_c10d import is_xccl_available as is_built

    return bool(is_built())


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    """Whether the device of this process computes in bf16; a TPU counts unless ``ignore_tpu``."""
    if is_torch_xla_available(check_is_tpu=True):
        return not ignore_tpu
    return _supports(get_current_device_type()[0], "bfloat16")


def is_fp16_available() -> bool:
    """Whether the device of this process computes in fp16: all do but Gaudi of the first generation."""
    return not is_habana_gaudi1()


def is_transformer_engine_mxfp8_available() -> bool:
    """Whether Transformer Engine is installed and the GPU scales blocks of 8-bit values (Blackwell)."""
    if not is_transformer_engine_available() or not is_cuda_available():
        return False
    import torch

    return torch.cuda.get_device_capability() >= (10, 0)  # mxfp8 needs Blackwell


def check_cuda_fp8_capability() -> bool:
    """Whether the current CUDA device multiplies 8-bit matrices (compute capability 8.9 or higher)."""
    return is_cuda_available() and _supports("cuda", "float8_e4m3fn")


def get_current_device_type() -> tuple[str, str]:
    """Return the device type of this process, and the distributed type of several such, as two strings."""
    from accel_state.devices import current_device_backend

    backend = current_device_backend()
    return backend.name, str(backend.distributed_type)


def _no_device_reason(name: str, *, check_device: bool = False) -> str | None:
    """Return why this process can use no device that torch calls ``name``, None if it can.

    Args:
        name: Such as ``cuda``; see `accel_state.devices.vendors`.
        check_device: Also count the devices, which may initialize the vendor's runtime.

    Raises:
        UnknownNameError: If no vendor has the name.
    """
    reason = find_vendor(name).not_installed_reason()
    if reason is not None:
        return reason
    from accel_state.devices import device_backend

    return device_backend(name).unavailable_reason(check_device=check_device)


def _supports(device: str, dtype: str) -> bool:
    import torch

    from accel_state.devices import device_backend

    return device_backend(device).supports(getattr(torch, dtype))


def _no_torch_distributed_reason() -> str | None:
    import torch.distributed

    if torch.distributed.is_available():
        return None
    return (
        f"This torch ({torch.__version__}) is built without `torch.distributed`. Install a build that has it."
    )


is_torch_distributed_available = _check(
    "torch_distributed",
    "Whether this torch can run several processes together.",
    _no_torch_distributed_reason,
)


# --- calls that need a package, and the system


def deepspeed_required(func: Callable[P, R]) -> Callable[P, R]:
    """Make calls of ``func`` a `NotAvailableError` if DeepSpeed is not installed."""
    return _required("deepspeed", func)


def torchao_required(func: Callable[P, R]) -> Callable[P, R]:
    """Make calls of ``func`` a `NotAvailableError` if torchao is not installed or too old."""
    return _required("torchao", func)


def _required(name: str, func: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(func)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        reason = why_not(name)
        if reason is not None:
            raise NotAvailableError(f"`{func.__qualname__}` needs `{name}`. {reason}")
        return func(*args, **kwargs)

    return checked


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Return the given top-level modules that have been imported in this process."""
    return [name for name in library_names if name in sys.modules]


def check_os_kernel() -> None:
    """Log a warning if the Linux kernel is older than 5.5.0: older ones have made processes hang."""
    uname = platform.uname()
    if uname.system != "Linux":
        return
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", uname.release)
    if match is not None and tuple(int(part or 0) for part in match.groups()) < _OLDEST_LINUX:
        oldest = ".".join(map(str, _OLDEST_LINUX))
        logger.warning(
            f"The Linux kernel {uname.release} is older than {oldest}; older kernels have made processes hang. "  # noqa: G004
            f"Use kernel {oldest} or newer."
        )


__all__ = [name for name in globals() if name.startswith(("are_", "check_", "get_", "is_"))]
__all__ += ["deepspeed_required", "torchao_required", "why_not"]
