"""Functions that users import beside the Accelerator, and that belong to no other package."""

from __future__ import annotations

from accel_state.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "find_pippy_batch_size": "accel.functions.pipeline_inference",
        "pippy_forward": "accel.functions.pipeline_inference",
        "build_pipeline": "accel.functions.pipeline_inference",
        "generate_device_map": "accel.functions.pipeline_inference",
        "load_fsdp_model": "accel.functions.fsdp_checkpoints",
        "load_fsdp_optimizer": "accel.functions.fsdp_checkpoints",
        "save_fsdp_model": "accel.functions.fsdp_checkpoints",
        "save_fsdp_optimizer": "accel.functions.fsdp_checkpoints",
    },
)
