"""Atomic checkpoints, for one process or many: a checkpoint is complete, or it does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_checkpoint.folder import CheckpointFolder as CheckpointFolder
    from accel_checkpoint.folder import SavedCheckpoint as SavedCheckpoint
    from accel_checkpoint.functions import TORCH_SAFE_GLOBALS as TORCH_SAFE_GLOBALS
    from accel_checkpoint.functions import load as load
    from accel_checkpoint.functions import load_custom_state as load_custom_state
    from accel_checkpoint.functions import save as save
    from accel_checkpoint.functions import save_custom_state as save_custom_state
    from accel_checkpoint.merging import merge_fsdp_weights as merge_fsdp_weights
    from accel_checkpoint.saving.handle import SaveHandle as SaveHandle
    from accel_checkpoint.saving.model_weights import save_model as save_model
    from accel_checkpoint.saving.stage import Stage as Stage

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CheckpointFolder": "accel_checkpoint.folder",
        "SaveHandle": "accel_checkpoint.saving.handle",
        "SavedCheckpoint": "accel_checkpoint.folder",
        "Stage": "accel_checkpoint.saving.stage",
        "TORCH_SAFE_GLOBALS": "accel_checkpoint.functions",
        "load": "accel_checkpoint.functions",
        "load_custom_state": "accel_checkpoint.functions",
        "merge_fsdp_weights": "accel_checkpoint.merging",
        "save": "accel_checkpoint.functions",
        "save_custom_state": "accel_checkpoint.functions",
        "save_model": "accel_checkpoint.saving.model_weights",
    },
)
