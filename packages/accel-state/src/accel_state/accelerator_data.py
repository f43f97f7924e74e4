"""What an `Accelerator` adds to the runtime: the precision, the engine's plugins, the mesh."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accel_state.enums import DistributedType
from accel_state.mesh_layout import MeshLayout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accel_state.parallelism_config import ParallelismConfig


@dataclass(slots=True)
class AcceleratorData:
    """Plugins are opaque here: they belong to the engines, which live in packages above this one."""

    mixed_precision: str
    distributed_type: DistributedType
    layout: MeshLayout
    dynamo_plugin: Any = None
    deepspeed_plugins: dict[str, Any] = field(default_factory=dict)
    active_deepspeed_plugin: str | None = None
    fsdp_plugin: Any = None
    torch_tp_plugin: Any = None
    megatron_lm_plugin: Any = None
    parallelism_config: ParallelismConfig | None = None
    device_mesh: DeviceMesh | None = None
