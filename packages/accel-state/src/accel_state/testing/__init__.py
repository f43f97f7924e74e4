"""Decorators, test cases and commands for tests of training scripts, by the names that Accelerate gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_state.testing.cases import *  # noqa: F403
    from accel_state.testing.commands import *  # noqa: F403
    from accel_state.testing.hardware import *  # noqa: F403
    from accel_state.testing.regression import *  # noqa: F403
    from accel_state.testing.requirements import *  # noqa: F403

_HOMES = {
    "cases": (
        "AccelerateTestCase",
        "MockingTestCase",
        "TempDirTestCase",
        "assert_exception",
        "capture_call_output",
    ),
    "commands": (
        "DEFAULT_LAUNCH_COMMAND",
        "SubprocessCallException",
        "execute_subprocess_async",
        "get_launch_command",
        "get_torch_dist_unique_port",
        "pytest_xdist_worker_id",
        "run_command",
    ),
    "hardware": ("device_count", "get_backend", "memory_allocated_func", "torch_device"),
    "regression": ("RegressionDataset", "RegressionModel"),
    "requirements": (
        "require_aim",
        "require_bnb",
        "require_clearml",
        "require_comet_ml",
        "require_cpu",
        "require_cuda",
        "require_cuda_or_hpu",
        "require_cuda_or_xpu",
        "require_datasets",
        "require_deepspeed",
        "require_dvclive",
        "require_fp16",
        "require_fp8",
        "require_fsdp2",
        "require_huggingface_suite",
        "require_import_timer",
        "require_matplotlib",
        "require_mlflow",
        "require_mlu",
        "require_mps",
        "require_multi_device",
        "require_multi_gpu",
        "require_multi_gpu_or_xpu",
        "require_multi_xpu",
        "require_musa",
        "require_neuron",
        "require_non_cpu",
        "require_non_hpu",
        "require_non_torch_xla",
        "require_non_xpu",
        "require_npu",
        "require_pandas",
        "require_peft",
        "require_pippy",
        "require_schedulefree",
        "require_sdaa",
        "require_single_device",
        "require_single_gpu",
        "require_single_xpu",
        "require_swanlab",
        "require_tensorboard",
        "require_timm",
        "require_torch_min_version",
        "require_torchao",
        "require_torchdata_stateful_dataloader",
        "require_torchvision",
        "require_tp",
        "require_tpu",
        "require_trackers",
        "require_trackio",
        "require_transformer_engine",
        "require_transformer_engine_mxfp8",
        "require_transformers",
        "require_triton",
        "require_wandb",
        "require_xpu",
        "run_first",
        "skip",
        "slow",
    ),
}
__getattr__, __dir__, __all__ = attach(
    __name__, {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
)
