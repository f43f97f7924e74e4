"""Tensors that only one rank has, and whose shape the others do not know."""

from __future__ import annotations

from typing import Any

import torch

from accel_ops.agreement.calls import Call
from accel_ops.collectives.broadcasting import broadcast
from accel_ops.collectives.objects import gather_each
from accel_ops.nested.description import find_device, get_data_structure, initialize_tensors
from accel_ops.nested.dtypes import TENSOR_TYPE_TO_INT
from accel_ops.nested.placement import send_to_device
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError
from accel_state.runtime import current_runtime, has_runtime


def copy_tensor_to_devices(tensor: Any = None) -> Any:
    """Return, on every rank, the nested tensors of the one rank that has them.

    Every rank must call it; it blocks until all have. Unlike :func:`broadcast`, the others need to know
    neither the source nor the shapes: they give ``None``. They receive on a device of the same type as the
    source's tensors have: their own one.

    Raises:
        ConfigError: On every rank, if not exactly one of them gives tensors.
        StateError: If there are several processes but no process group.
    """
    transport = current_transport()
    if transport.world_size == 1:
        return tensor
    device = find_device(tensor)
    own = None if tensor is None else (get_data_structure(tensor), None if device is None else device.type)
    structures = gather_each(transport, Call(copy_tensor_to_devices), own)
    sources = [rank for rank, structure in enumerate(structures) if structure is not None]
    if len(sources) != 1:
        having = ", ".join(str(rank) for rank in sources) or "none"
        raise ConfigError(
            f"`tensor` must be given on exactly one process and be None elsewhere. It is given on: {having}."
        )
    (source,) = sources
    if transport.rank != source:
        structure, device_type = structures[source]
        tensor = initialize_tensors(structure)
        if device_type not in (None, "cpu"):
            tensor = send_to_device(tensor, _own_device(device_type))
    return broadcast(tensor, from_process=source)


def _own_device(device_type: str) -> torch.device:
    """Return this process's device of a type."""
    if has_runtime() and current_runtime().device.type == device_type:
        return current_runtime().device
    return torch.device(device_type)


def gather_tensor_shape(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return, on every rank, the shape of a tensor that one rank has, and its dtype as a number behind it.

    The result is a one-dimensional int64 tensor on the CPU. Every rank must call it; the others give
    ``None``.

    Raises:
        ConfigError: On every rank, if not exactly one of them gives a tensor, or one of a dtype without a
            number.
        StateError: If there are several processes but no process group.
    """
    transport = current_transport()
    own = None if tensor is None else [*tensor.shape, TENSOR_TYPE_TO_INT.get(tensor.dtype, 0)]
    given = [own] if transport.world_size == 1 else gather_each(transport, Call(gather_tensor_shape), own)
    shapes = [shape for shape in given if shape is not None]
    if len(shapes) != 1 or shapes[0][-1] == 0:
        raise ConfigError(
            "`tensor` must be given on exactly one process, in one of the dtypes of `TENSOR_TYPE_TO_INT`, "
            f"got {shapes}."
        )
    return torch.tensor(shapes[0], dtype=torch.int64, device="cpu")
