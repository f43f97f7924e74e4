"""What is available here: packages, by their metadata; devices, by asking torch; and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_state.availability.capabilities import check_cuda_fp8_capability as check_cuda_fp8_capability
    from accel_state.availability.capabilities import get_current_device_type as get_current_device_type
    from accel_state.availability.capabilities import is_bf16_available as is_bf16_available
    from accel_state.availability.capabilities import is_fp16_available as is_fp16_available
    from accel_state.availability.capabilities import (
        is_transformer_engine_mxfp8_available as is_transformer_engine_mxfp8_available,
    )
    from accel_state.availability.capabilities import is_xccl_available as is_xccl_available
    from accel_state.availability.devices import is_cuda_available as is_cuda_available
    from accel_state.availability.devices import is_habana_gaudi1 as is_habana_gaudi1
    from accel_state.availability.devices import is_hpu_available as is_hpu_available
    from accel_state.availability.devices import is_mlu_available as is_mlu_available
    from accel_state.availability.devices import is_mps_available as is_mps_available
    from accel_state.availability.devices import is_musa_available as is_musa_available
    from accel_state.availability.devices import is_neuron_available as is_neuron_available
    from accel_state.availability.devices import is_npu_available as is_npu_available
    from accel_state.availability.devices import is_rocm_available as is_rocm_available
    from accel_state.availability.devices import is_sdaa_available as is_sdaa_available
    from accel_state.availability.devices import (
        is_torch_distributed_available as is_torch_distributed_available,
    )
    from accel_state.availability.devices import is_torch_xla_available as is_torch_xla_available
    from accel_state.availability.devices import is_xpu_available as is_xpu_available
    from accel_state.availability.explanation import why_not as why_not
    from accel_state.availability.nvidia import check_cuda_p2p_ib_support as check_cuda_p2p_ib_support
    from accel_state.availability.nvidia import get_driver_version as get_driver_version
    from accel_state.availability.nvidia import get_gpu_info as get_gpu_info
    from accel_state.availability.packages import is_4bit_bnb_available as is_4bit_bnb_available
    from accel_state.availability.packages import is_8bit_bnb_available as is_8bit_bnb_available
    from accel_state.availability.packages import is_aim_available as is_aim_available
    from accel_state.availability.packages import is_amdsmi_available as is_amdsmi_available
    from accel_state.availability.packages import (
        is_bitsandbytes_multi_backend_available as is_bitsandbytes_multi_backend_available,
    )
    from accel_state.availability.packages import is_bnb_available as is_bnb_available
    from accel_state.availability.packages import is_boto3_available as is_boto3_available
    from accel_state.availability.packages import is_clearml_available as is_clearml_available
    from accel_state.availability.packages import is_comet_ml_available as is_comet_ml_available
    from accel_state.availability.packages import is_datasets_available as is_datasets_available
    from accel_state.availability.packages import is_deepspeed_available as is_deepspeed_available
    from accel_state.availability.packages import is_dvclive_available as is_dvclive_available
    from accel_state.availability.packages import is_fp8_available as is_fp8_available
    from accel_state.availability.packages import is_import_timer_available as is_import_timer_available
    from accel_state.availability.packages import is_lomo_available as is_lomo_available
    from accel_state.availability.packages import is_matplotlib_available as is_matplotlib_available
    from accel_state.availability.packages import is_megatron_lm_available as is_megatron_lm_available
    from accel_state.availability.packages import is_mlflow_available as is_mlflow_available
    from accel_state.availability.packages import is_msamp_available as is_msamp_available
    from accel_state.availability.packages import is_numpy_available as is_numpy_available
    from accel_state.availability.packages import is_pandas_available as is_pandas_available
    from accel_state.availability.packages import is_peft_available as is_peft_available
    from accel_state.availability.packages import is_pippy_available as is_pippy_available
    from accel_state.availability.packages import is_pynvml_available as is_pynvml_available
    from accel_state.availability.packages import is_pytest_available as is_pytest_available
    from accel_state.availability.packages import is_rich_available as is_rich_available
    from accel_state.availability.packages import is_sagemaker_available as is_sagemaker_available
    from accel_state.availability.packages import is_schedulefree_available as is_schedulefree_available
    from accel_state.availability.packages import is_swanlab_available as is_swanlab_available
    from accel_state.availability.packages import is_tensorboard_available as is_tensorboard_available
    from accel_state.availability.packages import is_timm_available as is_timm_available
    from accel_state.availability.packages import is_torchao_available as is_torchao_available
    from accel_state.availability.packages import is_torchdata_available as is_torchdata_available
    from accel_state.availability.packages import (
        is_torchdata_stateful_dataloader_available as is_torchdata_stateful_dataloader_available,
    )
    from accel_state.availability.packages import is_torchvision_available as is_torchvision_available
    from accel_state.availability.packages import is_tqdm_available as is_tqdm_available
    from accel_state.availability.packages import is_trackio_available as is_trackio_available
    from accel_state.availability.packages import (
        is_transformer_engine_available as is_transformer_engine_available,
    )
    from accel_state.availability.packages import is_transformers_available as is_transformers_available
    from accel_state.availability.packages import is_triton_available as is_triton_available
    from accel_state.availability.packages import is_wandb_available as is_wandb_available
    from accel_state.availability.packages import is_weights_only_available as is_weights_only_available
    from accel_state.availability.required import deepspeed_required as deepspeed_required
    from accel_state.availability.required import torchao_required as torchao_required
    from accel_state.availability.system import are_libraries_initialized as are_libraries_initialized
    from accel_state.availability.system import check_os_kernel as check_os_kernel

_HOMES = {
    "capabilities": (
        "check_cuda_fp8_capability",
        "get_current_device_type",
        "is_bf16_available",
        "is_fp16_available",
        "is_transformer_engine_mxfp8_available",
        "is_xccl_available",
    ),
    "devices": (
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
    ),
    "explanation": ("why_not",),
    "nvidia": (
        "check_cuda_p2p_ib_support",
        "get_driver_version",
        "get_gpu_info",
    ),
    "packages": (
        "is_4bit_bnb_available",
        "is_8bit_bnb_available",
        "is_aim_available",
        "is_amdsmi_available",
        "is_bitsandbytes_multi_backend_available",
        "is_bnb_available",
        "is_boto3_available",
        "is_clearml_available",
        "is_comet_ml_available",
        "is_datasets_available",
        "is_deepspeed_available",
        "is_dvclive_available",
        "is_fp8_available",
        "is_import_timer_available",
        "is_lomo_available",
        "is_matplotlib_available",
        "is_megatron_lm_available",
        "is_mlflow_available",
        "is_msamp_available",
        "is_numpy_available",
        "is_pandas_available",
        "is_peft_available",
        "is_pippy_available",
        "is_pynvml_available",
        "is_pytest_available",
        "is_rich_available",
        "is_sagemaker_available",
        "is_schedulefree_available",
        "is_swanlab_available",
        "is_tensorboard_available",
        "is_timm_available",
        "is_torchao_available",
        "is_torchdata_available",
        "is_torchdata_stateful_dataloader_available",
        "is_torchvision_available",
        "is_tqdm_available",
        "is_trackio_available",
        "is_transformer_engine_available",
        "is_transformers_available",
        "is_triton_available",
        "is_wandb_available",
        "is_weights_only_available",
    ),
    "required": (
        "deepspeed_required",
        "torchao_required",
    ),
    "system": (
        "are_libraries_initialized",
        "check_os_kernel",
    ),
}
__getattr__, __dir__, __all__ = attach(
    __name__, {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
)
