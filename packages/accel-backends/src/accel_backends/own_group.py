"""The process group of a strategy whose engine needs one, also where one process runs alone."""

from __future__ import annotations

import torch.distributed as dist

from accel_state.errors import StateError
from accel_state.process_group import is_group_up, set_up_group
from accel_state.runtime import Runtime


def ensure_group(runtime: Runtime) -> None:
    """Give a process that runs alone a process group of its own; one that has a group keeps it.

    Raises:
        StateError: If the group of several processes was destroyed.
    """
    if is_group_up():
        return
    if runtime.topology.world_size > 1:
        raise StateError(
            f"The process group of the {runtime.topology.world_size} processes was destroyed, as by `end_training`. "
            "Construct another `Accelerator`."
        )
    store = dist.HashStore()  # type: ignore[attr-defined]
    backend = runtime.device_backend.collective_backend or "gloo"
    set_up_group(runtime.topology, backend=backend, options={"store": store})
