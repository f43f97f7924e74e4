"""`ParallelismConfig`: the axes of the device mesh and their sizes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from accel_state.environment import read
from accel_state.errors import ConfigError, StateError
from accel_state.layout_rules import check_layout
from accel_state.mesh_layout import AXES, DATA_AXES, MeshLayout, check_size
from accel_state.parallelism_handlers import (
    DeepSpeedSequenceParallelConfig,
    PipelineParallelConfig,
    TorchContextParallelConfig,
    TorchTensorParallelConfig,
    check_choice,
)

__all__ = [
    "DeepSpeedSequenceParallelConfig",
    "ParallelismConfig",
    "PipelineParallelConfig",
    "TorchContextParallelConfig",
    "TorchTensorParallelConfig",
]

_HANDLERS = {
    "tp": TorchTensorParallelConfig,
    "cp": TorchContextParallelConfig,
    "sp": DeepSpeedSequenceParallelConfig,
    "pp": PipelineParallelConfig,
}


@dataclass
class ParallelismConfig:
    """The sizes of the mesh's axes; their product, without ``ep_size``, is the number of processes.

    Sizes and backends that are None are read from ``PARALLELISM_CONFIG_*`` when the object is built; a size that
    is unset there as well is 1, which disables the axis. If all are 1, the engine of the run arranges the
    processes: each has a replica of the model, or with FSDP all shard one. Tensor, context, sequence and pipeline
    parallelism have a handler each if they are enabled.

    Args:
        dp_replicate_size: Replicas of the model.
        dp_shard_size: Processes over which each replica is sharded.
        tp_size: Processes over which each layer is sharded.
        cp_size: Processes over which each sequence is sharded, by torch's context parallelism.
        sp_size: Processes over which each sequence is sharded, by attention heads (Ulysses).
        sp_backend: Its library: ``deepspeed`` with DeepSpeed, else ``torch``.
        pp_size: Stages of the pipeline.
        ep_size: Processes over which the experts of a layer are sharded; not additional, but a divisor of
            ``dp_shard_size * cp_size * sp_size * tp_size``. If no other size
            but ``pp_size`` is set, it also sets ``dp_shard_size``.

    Raises:
        ConfigError: If a size is not an integer of at least 1, or sizes exclude each other.
    """

    dp_replicate_size: int | None = None
    dp_shard_size: int | None = None
    tp_size: int | None = None
    cp_size: int | None = None
    cp_backend: Literal["torch"] | None = None
    sp_size: int | None = None
    sp_backend: Literal["deepspeed", "torch"] | None = None
    tp_handler: TorchTensorParallelConfig | None = None
    cp_handler: TorchContextParallelConfig | None = None
    sp_handler: DeepSpeedSequenceParallelConfig | None = None
    pp_size: int | None = None
    ep_size: int | None = None
    pp_handler: PipelineParallelConfig | None = None
    device_mesh: DeviceMesh | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for axis in (*AXES, "ep"):
            given = getattr(self, f"{axis}_size")
            size = read(f"parallelism_{axis}_size") if given is None else given
            setattr(self, f"{axis}_size", check_size(f"{axis}_size", size))
        if {*self.active_mesh_dims} <= {"pp"}:
            self.dp_shard_size = self.ep_size
        for name, choices in (("cp_backend", ("torch",)), ("sp_backend", ("deepspeed", "torch"))):
            if getattr(self, name) is None:
                setattr(self, name, read(f"parallelism_{name}"))
            check_choice(name, getattr(self, name), choices)
        check_layout(self.layout)
        for axis, handler in _HANDLERS.items():
            self._complete_handler(axis, handler)

    @property
    def layout(self) -> MeshLayout:
        """How the processes are arranged."""
        return MeshLayout(**{axis: self._size(axis) for axis in (*AXES, "ep")})

    @property
    def total_size(self) -> int:
        """Number of processes of the mesh."""
        return self.layout.world_size

    @property
    def data_parallel_size(self) -> int:
        """Processes that see different batches."""
        return self.layout.num_data_ranks

    @property
    def non_data_parallel_size(self) -> int:
        """Processes that work on the same batch."""
        return self.layout.size("pp", "cp", "sp", "tp")

    @property
    def dp_replicate_enabled(self) -> bool:
        """Whether there is more than one replica of the model."""
        return self._size("dp_replicate") > 1

    @property
    def dp_shard_enabled(self) -> bool:
        """Whether parameters are sharded over processes that see different batches."""
        return self._size("dp_shard") > 1

    @property
    def tp_enabled(self) -> bool:
        """Whether layers are sharded (tensor parallelism)."""
        return self._size("tp") > 1

    @property
    def cp_enabled(self) -> bool:
        """Whether sequences are sharded by context parallelism."""
        return self._size("cp") > 1

    @property
    def sp_enabled(self) -> bool:
        """Whether sequences are sharded by attention heads."""
        return self._size("sp") > 1

    @property
    def pp_enabled(self) -> bool:
        """Whether the model is split into pipeline stages."""
        return self._size("pp") > 1

    @property
    def ep_enabled(self) -> bool:
        """Whether the experts of a layer are sharded."""
        return self._size("ep") > 1

    @property
    def active_mesh_dims(self) -> list[str]:
        """The enabled axes, in the order of the mesh."""
        return self._enabled(*AXES)

    @property
    def dp_dim_names(self) -> list[str]:
        """The axes along which batches differ."""
        return self._enabled(*DATA_AXES)

    @property
    def non_dp_dim_names(self) -> list[str]:
        """The axes along which the batch is the same."""
        return self._enabled("pp", "cp", "sp", "tp")

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """The axes over which FSDP shards parameters; in the mesh they are one, called ``dp_shard_cp``."""
        return self._enabled("dp_shard", "cp")

    @property
    def dp_cp_dim_names(self) -> list[str]:
        """The axes over which the loss is averaged; in the mesh they are one, called ``dp_cp``."""
        return self._enabled(*DATA_AXES, "cp")

    @property
    def fsdp_dim_names(self) -> list[str]:
        """The names of the mesh for FSDP: the replicas, if several, then the shards, if any."""
        shards = ["dp_shard_cp"] if self.dp_shard_cp_dim_names else []
        return [*self._enabled("dp_replicate"), *shards]

    def _get_mesh(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names and the sizes of the mesh's axes; libraries use this method."""
        axes = tuple(self.active_mesh_dims)
        return axes, tuple(map(self._size, axes))

    def build_device_mesh(self, device_type: str) -> DeviceMesh | None:
        """Build the mesh over all processes. Every process must call this; it blocks until all have.

        The enabled axes are in the order of `active_mesh_dims`; their unions ``dp``, ``dp_shard_cp``,
        ``dp_cp`` and ``loss`` can also be looked up by name. A mesh of one process is None. Without a process group,
        torch makes one from the environment.

        Raises:
            ConfigError: If the sizes do not multiply to the number of processes.
        """
        layout = self.layout
        if layout.world_size > 1 and not dist.is_initialized():
            dist.init_process_group()
        if dist.is_initialized():
            check_layout(layout, num_processes=dist.get_world_size())
        return layout.mesh(device_type, self.active_mesh_dims) if layout.world_size > 1 else None

    def get_device_mesh(self, device_type: str | None = None) -> DeviceMesh | None:
        """Return the mesh, building it for ``device_type`` on the first call.

        Raises:
            StateError: If no mesh has been built and no type is given, or it was built for another type.
        """
        if self.device_mesh is None:
            if device_type is None:
                raise StateError(
                    "The device mesh has not been built. Call `get_device_mesh(device_type)` first."
                )
            self.device_mesh = self.build_device_mesh(device_type)
        elif device_type is not None and self.device_mesh.device_type != device_type:
            raise StateError(
                f"The device mesh was built for `{self.device_mesh.device_type}`, but `{device_type}` is "
                "requested. Build a new `ParallelismConfig` for it."
            )
        return self.device_mesh

    def fit_to(self, num_processes: int, *, default: MeshLayout | None = None) -> None:
        """Use the layout ``default`` if no size was given, else compare.

        Args:
            num_processes: Processes of the run.
            default: The layout of the engine; by default a replica of the model on every process.

        Raises:
            ConfigError: If the sizes do not multiply to the number of processes.
        """
        if self.layout == MeshLayout():
            arranged = MeshLayout.of_replicas(num_processes) if default is None else default
            for axis, size in arranged.sizes.items():
                setattr(self, f"{axis}_size", size)
        check_layout(self.layout, num_processes=num_processes)

    def to_json(self) -> dict[str, Any]:
        """Return sizes, backends and handlers as JSON values."""
        names = [known.name for known in dataclasses.fields(self) if known.name != "device_mesh"]
        values = {name: getattr(self, name) for name in names}
        return {
            name: dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
            for name, value in values.items()
        }

    def _size(self, axis: str) -> int:
        size: int = getattr(self, f"{axis}_size")
        return size

    def _enabled(self, *axes: str) -> list[str]:
        return [axis for axis in axes if self._size(axis) > 1]

    def _complete_handler(self, axis: str, kind: type[Any]) -> None:
        handler = getattr(self, f"{axis}_handler")
        idle = f"`{axis}_size` is 1" if self._size(axis) == 1 else ""
        if axis == "sp" and self.sp_enabled and self.sp_backend == "torch":
            idle = "`sp_backend` is `torch`"  # the settings are DeepSpeed's
        if idle:
            if handler is not None:
                raise ConfigError(f"`{axis}_handler` has no effect while {idle}. Leave it out.")
        elif handler is None:
            setattr(self, f"{axis}_handler", kind())
        elif not isinstance(handler, kind):
            raise ConfigError(
                f"`{axis}_handler` must be a `{kind.__name__}`, got `{type(handler).__name__}`."
            )
