"""Tensors that only one rank has, and whose shape the others do not know."""

from __future__ import annotations

from typing import Any

import torch

from accel_ops.broadcasting import broadcast
from accel_ops.debug import verify_call
from accel_ops.description import get_data_structure, initialize_tensors
from accel_ops.dtypes import TENSOR_TYPE_TO_INT
from accel_ops.objects import gather_object
from accel_ops.placement import send_to_device
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError


@verify_call(aspects=())
def copy_tensor_to_devices(tensor: Any = None) -> Any:
    """Return, on every rank, the nested tensors of the one rank that has them.

    Every rank must call it; it blocks until all have. Unlike :func:`broadcast`, the others need to know
    neither the source nor the shapes: they give ``None``. They receive on the device of the collectives (an
    accelerator where there is one).

    Raises:
        ConfigError: On every rank, if not exactly one of them gives tensors.
    """
    transport = current_transport()
    if transport.world_size == 1:
        return tensor
    structures = gather_object([None if tensor is None else get_data_structure(tensor)])
    sources = [rank for rank, structure in enumerate(structures) if structure is not None]
    if len(sources) != 1:
        having = ", ".join(str(rank) for rank in sources) or "none"
        raise ConfigError(
            f"`tensor` must be given on exactly one process and be None elsewhere. It is given on: {having}."
        )
    if transport.rank != sources[0]:
        tensor = send_to_device(initialize_tensors(structures[sources[0]]), transport.control_device)
    return broadcast(tensor, from_process=sources[0])


@verify_call(aspects=())
def gather_tensor_shape(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return, on every rank, the shape of a tensor that one rank has, and its dtype as a number behind it.

    The result is a one-dimensional int64 tensor on the CPU. Every rank must call it; the others give
    ``None``.

    Raises:
        ConfigError: On every rank, if not exactly one of them gives a tensor, or one of a dtype without a
            number.
    """
    own = None if tensor is None else [*tensor.shape, TENSOR_TYPE_TO_INT.get(tensor.dtype, 0)]
    shapes = [shape for shape in gather_object([own]) if shape is not None]
    if len(shapes) != 1 or shapes[0][-1] == 0:
        raise ConfigError(
            "`tensor` must be given on exactly one process, in one of the dtypes of `TENSOR_TYPE_TO_INT`, "
            f"got {shapes}."
        )
    return torch.tensor(shapes[0], dtype=torch.int64)
