"""How layers are shared by tensor parallelism, as a plugin; `ParallelismConfig` says it since."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh

from accel_state.errors import ConfigError


@dataclass
class TorchTensorParallelPlugin:
    """Settings of tensor parallelism. Deprecated: pass ``ParallelismConfig(tp_size=…)`` instead.

    Args:
        tp_size: Processes that share each layer, 2 or more.
        torch_device_mesh: The mesh of these processes, where the script has built it; it must have an axis ``tp`` of
            this size.

    Raises:
        ConfigError: If the size is not a whole number of at least 2, or is not that of the mesh.
    """

    tp_size: int = 1
    torch_device_mesh: DeviceMesh | None = None

    def __post_init__(self) -> None:
        if type(self.tp_size) is not int or self.tp_size < 2:
            raise ConfigError(
                f"`tp_size` must be a whole number of at least 2, got {self.tp_size!r}. Leave the plugin out where "
                "layers are not shared."
            )
        mesh = self.torch_device_mesh
        if mesh is None:
            return
        names = mesh.mesh_dim_names or ()
        if "tp" not in names:
            raise ConfigError(
                f"`torch_device_mesh` must have an axis called `tp`, but its axes are: {', '.join(names) or 'unnamed'}."
            )
        size = mesh["tp"].size()
        if size != self.tp_size:
            raise ConfigError(
                f"`tp_size` is {self.tp_size}, but the axis `tp` of `torch_device_mesh` has {size} processes. "
                "Make them the same."
            )
