"""One PyTorch script, unchanged, from a laptop to many machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel import accelerator as accelerator
    from accel import big_modeling as big_modeling
    from accel import checkpointing as checkpointing
    from accel import commands as commands
    from accel import data_loader as data_loader
    from accel import hooks as hooks
    from accel import inference as inference
    from accel import launchers as launchers
    from accel import local_sgd as local_sgd
    from accel import logging as logging
    from accel import optimizer as optimizer
    from accel import parallelism_config as parallelism_config
    from accel import scheduler as scheduler
    from accel import state as state
    from accel import test_utils as test_utils
    from accel import tracking as tracking
    from accel import utils as utils
    from accel.accelerator import Accelerator as Accelerator
    from accel.functions.general import PROFILE_PATTERN_NAME as PROFILE_PATTERN_NAME
    from accel.functions.pipeline_inference import prepare_pippy as prepare_pippy
    from accel.functions.progress import tqdm as tqdm
    from accel.local_sgd import LocalSGD as LocalSGD
    from accel.run.project import ProjectConfiguration as ProjectConfiguration
    from accel_backends import AutocastKwargs as AutocastKwargs
    from accel_backends import DeepSpeedPlugin as DeepSpeedPlugin
    from accel_backends import DistributedDataParallelKwargs as DistributedDataParallelKwargs
    from accel_backends import FullyShardedDataParallelPlugin as FullyShardedDataParallelPlugin
    from accel_backends import GradScalerKwargs as GradScalerKwargs
    from accel_backends import ProfileKwargs as ProfileKwargs
    from accel_bigmodel import cpu_offload as cpu_offload
    from accel_bigmodel import cpu_offload_with_hook as cpu_offload_with_hook
    from accel_bigmodel import disk_offload as disk_offload
    from accel_bigmodel import dispatch_model as dispatch_model
    from accel_bigmodel import infer_auto_device_map as infer_auto_device_map
    from accel_bigmodel import init_empty_weights as init_empty_weights
    from accel_bigmodel import init_on_device as init_on_device
    from accel_bigmodel import load_checkpoint_and_dispatch as load_checkpoint_and_dispatch
    from accel_bigmodel import load_checkpoint_in_model as load_checkpoint_in_model
    from accel_checkpoint.file_names import OPTIMIZER_NAME as OPTIMIZER_NAME
    from accel_checkpoint.file_names import RNG_STATE_NAME as RNG_STATE_NAME
    from accel_checkpoint.file_names import SAMPLER_NAME as SAMPLER_NAME
    from accel_checkpoint.file_names import SCALER_NAME as SCALER_NAME
    from accel_checkpoint.file_names import SCHEDULER_NAME as SCHEDULER_NAME
    from accel_data import DataLoaderConfiguration as DataLoaderConfiguration
    from accel_data import skip_first_batches as skip_first_batches
    from accel_launch import debug_launcher as debug_launcher
    from accel_launch import notebook_launcher as notebook_launcher
    from accel_ops import find_executable_batch_size as find_executable_batch_size
    from accel_ops import synchronize_rng_states as synchronize_rng_states
    from accel_state import DDPCommunicationHookType as DDPCommunicationHookType
    from accel_state import DistributedType as DistributedType
    from accel_state import InitProcessGroupKwargs as InitProcessGroupKwargs
    from accel_state import ParallelismConfig as ParallelismConfig
    from accel_state import PartialState as PartialState
    from accel_state.availability import is_rich_available as is_rich_available

__version__ = "0.2.0"

EXPORTS = {
    "Accelerator": "accel.accelerator",
    "AutocastKwargs": "accel_backends",
    "DDPCommunicationHookType": "accel_state",
    "DataLoaderConfiguration": "accel_data",
    "DeepSpeedPlugin": "accel_backends",
    "DistributedDataParallelKwargs": "accel_backends",
    "DistributedType": "accel_state",
    "FullyShardedDataParallelPlugin": "accel_backends",
    "GradScalerKwargs": "accel_backends",
    "InitProcessGroupKwargs": "accel_state",
    "LocalSGD": "accel.local_sgd",
    "OPTIMIZER_NAME": "accel_checkpoint.file_names",
    "PROFILE_PATTERN_NAME": "accel.functions.general",
    "ParallelismConfig": "accel_state",
    "PartialState": "accel_state",
    "ProfileKwargs": "accel_backends",
    "ProjectConfiguration": "accel.run.project",
    "RNG_STATE_NAME": "accel_checkpoint.file_names",
    "SAMPLER_NAME": "accel_checkpoint.file_names",
    "SCALER_NAME": "accel_checkpoint.file_names",
    "SCHEDULER_NAME": "accel_checkpoint.file_names",
    "cpu_offload": "accel_bigmodel",
    "cpu_offload_with_hook": "accel_bigmodel",
    "debug_launcher": "accel_launch",
    "disk_offload": "accel_bigmodel",
    "dispatch_model": "accel_bigmodel",
    "find_executable_batch_size": "accel_ops",
    "infer_auto_device_map": "accel_bigmodel",
    "init_empty_weights": "accel_bigmodel",
    "init_on_device": "accel_bigmodel",
    "is_rich_available": "accel_state.availability",
    "load_checkpoint_and_dispatch": "accel_bigmodel",
    "load_checkpoint_in_model": "accel_bigmodel",
    "notebook_launcher": "accel_launch",
    "prepare_pippy": "accel.functions.pipeline_inference",
    "skip_first_batches": "accel_data",
    "synchronize_rng_states": "accel_ops",
    "tqdm": "accel.functions.progress",
}
"""Public name: the module that has it."""

SUBMODULES = (
    "accelerator",
    "big_modeling",
    "checkpointing",
    "commands",
    "data_loader",
    "hooks",
    "inference",
    "launchers",
    "local_sgd",
    "logging",
    "optimizer",
    "parallelism_config",
    "scheduler",
    "state",
    "test_utils",
    "tracking",
    "utils",
)
"""Modules that are attributes without an import of their own, as users know it."""

__getattr__, __dir__, __all__ = attach(__name__, EXPORTS, submodules=SUBMODULES)
