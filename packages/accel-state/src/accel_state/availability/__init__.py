"""What is available here: packages, by their metadata; devices, by asking torch; and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.availability.packages import PACKAGES
from accel_state.lazy import attach

if TYPE_CHECKING:
    from collections.abc import Callable

    from accel_state.availability.capabilities import *  # noqa: F403
    from accel_state.availability.checks import *  # noqa: F403
    from accel_state.availability.devices import *  # noqa: F403
    from accel_state.availability.nvidia import *  # noqa: F403
    from accel_state.availability.packages import *  # noqa: F403

_HOMES = {
    "capabilities": [
        "check_cuda_fp8_capability",
        "get_current_device_type",
        "is_bf16_available",
        "is_fp16_available",
        "is_transformer_engine_mxfp8_available",
        "is_xccl_available",
    ],
    "checks": [
        "are_libraries_initialized",
        "check_os_kernel",
        "deepspeed_required",
        "torchao_required",
        "why_not",
    ],
    "devices": [
        "is_cuda_available",
        "is_habana_gaudi1",
        "is_hpu_available",
        "is_mlu_available",
        "is_mps_available",
        "is_musa_available",
        "is_neuron_available",
        "is_npu_available",
        "is_rocm_available",
        "is_sdaa_available",
        "is_torch_distributed_available",
        "is_torch_xla_available",
        "is_xpu_available",
    ],
    "nvidia": ["check_cuda_p2p_ib_support", "get_driver_version", "get_gpu_info"],
    "packages": [
        "is_fp8_available",
        "is_pippy_available",
        "is_tensorboard_available",
        "is_weights_only_available",
        *(f"is_{name}_available" for name in PACKAGES),
    ],
}

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., bool]: ...

else:
    __getattr__, __dir__, __all__ = attach(
        __name__, {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
    )
