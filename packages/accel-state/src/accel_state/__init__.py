"""The state of a process: its rank, device, settings and process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_state.accelerator_state import AcceleratorState as AcceleratorState
    from accel_state.accumulation import GradientAccumulationPlugin as GradientAccumulationPlugin
    from accel_state.affinity import CPUInformation as CPUInformation
    from accel_state.affinity import get_cpu_distributed_information as get_cpu_distributed_information
    from accel_state.affinity import override_numa_affinity as override_numa_affinity
    from accel_state.affinity import set_numa_affinity as set_numa_affinity
    from accel_state.enums import BaseEnum as BaseEnum
    from accel_state.enums import ComputeEnvironment as ComputeEnvironment
    from accel_state.enums import CustomDtype as CustomDtype
    from accel_state.enums import DDPCommunicationHookType as DDPCommunicationHookType
    from accel_state.enums import DistributedType as DistributedType
    from accel_state.enums import DynamoBackend as DynamoBackend
    from accel_state.enums import EnumWithContains as EnumWithContains
    from accel_state.enums import FP8BackendType as FP8BackendType
    from accel_state.enums import LoggerType as LoggerType
    from accel_state.enums import PrecisionType as PrecisionType
    from accel_state.enums import RNGType as RNGType
    from accel_state.enums import SageMakerDistributedType as SageMakerDistributedType
    from accel_state.errors import AccelError as AccelError
    from accel_state.errors import CheckpointError as CheckpointError
    from accel_state.errors import ConfigError as ConfigError
    from accel_state.errors import DistributedOperationException as DistributedOperationException
    from accel_state.errors import LaunchError as LaunchError
    from accel_state.errors import NotAvailableError as NotAvailableError
    from accel_state.errors import StateError as StateError
    from accel_state.errors import UnknownNameError as UnknownNameError
    from accel_state.gradient_state import GradientState as GradientState
    from accel_state.kwargs_handler import InitProcessGroupKwargs as InitProcessGroupKwargs
    from accel_state.kwargs_handler import KwargsHandler as KwargsHandler
    from accel_state.logging import MultiProcessAdapter as MultiProcessAdapter
    from accel_state.logging import get_logger as get_logger
    from accel_state.mesh_layout import MeshLayout as MeshLayout
    from accel_state.parallelism_config import (
        DeepSpeedSequenceParallelConfig as DeepSpeedSequenceParallelConfig,
    )
    from accel_state.parallelism_config import ParallelismConfig as ParallelismConfig
    from accel_state.parallelism_config import PipelineParallelConfig as PipelineParallelConfig
    from accel_state.parallelism_config import TorchContextParallelConfig as TorchContextParallelConfig
    from accel_state.parallelism_config import TorchTensorParallelConfig as TorchTensorParallelConfig
    from accel_state.partial_state import PartialState as PartialState
    from accel_state.process_environments import detect_topology as detect_topology
    from accel_state.registry import Registry as Registry
    from accel_state.runtime import current_runtime as current_runtime
    from accel_state.runtime import has_runtime as has_runtime
    from accel_state.runtime import reset_runtime as reset_runtime
    from accel_state.topology import Topology as Topology
    from accel_state.versions import STR_OPERATION_TO_FUNC as STR_OPERATION_TO_FUNC
    from accel_state.versions import compare_versions as compare_versions
    from accel_state.versions import is_torch_version as is_torch_version

    is_initialized = AcceleratorState.is_initialized

__version__ = "0.2.0"

_HOMES = {
    "accelerator_state": ("AcceleratorState",),
    "accumulation": ("GradientAccumulationPlugin",),
    "affinity": (
        "CPUInformation",
        "get_cpu_distributed_information",
        "override_numa_affinity",
        "set_numa_affinity",
    ),
    "enums": (
        "BaseEnum",
        "ComputeEnvironment",
        "CustomDtype",
        "DDPCommunicationHookType",
        "DistributedType",
        "DynamoBackend",
        "EnumWithContains",
        "FP8BackendType",
        "LoggerType",
        "PrecisionType",
        "RNGType",
        "SageMakerDistributedType",
    ),
    "errors": (
        "AccelError",
        "CheckpointError",
        "ConfigError",
        "DistributedOperationException",
        "LaunchError",
        "NotAvailableError",
        "StateError",
        "UnknownNameError",
    ),
    "gradient_state": ("GradientState",),
    "kwargs_handler": ("InitProcessGroupKwargs", "KwargsHandler"),
    "logging": ("MultiProcessAdapter", "get_logger"),
    "mesh_layout": ("MeshLayout",),
    "parallelism_config": (
        "DeepSpeedSequenceParallelConfig",
        "ParallelismConfig",
        "PipelineParallelConfig",
        "TorchContextParallelConfig",
        "TorchTensorParallelConfig",
    ),
    "partial_state": ("PartialState",),
    "process_environments": ("detect_topology",),
    "registry": ("Registry",),
    "runtime": ("current_runtime", "has_runtime", "reset_runtime"),
    "topology": ("Topology",),
    "versions": ("STR_OPERATION_TO_FUNC", "compare_versions", "is_torch_version"),
}
__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "is_initialized": f"{__name__}.accelerator_state:AcceleratorState.is_initialized",
        **{name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names},
    },
)
