"""Rows of tensors on XLA devices, spread over the devices that one process drives (SPMD)."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch

from accel_ops.nested.structures import recursively_apply

ROW_AXES = ("dp_replicate", "data", "fsdp")
"""Names of the axes of a mesh whose devices have different rows."""


def row_axes(mesh: Any) -> tuple[str, ...]:
    """Return the axes of ``mesh`` that rows are spread over, in its order; none where axes have no names."""
    return tuple(name for name in mesh.axis_names or () if name in ROW_AXES)


def spread_rows(data: Any, mesh: Any) -> None:
    """Spread the first dimension of all XLA tensors in nested data over ``mesh``, in place.

    Tensors whose rows do not divide, such as those of a shorter last batch, stay whole on every device.
    """
    axes = row_axes(mesh)
    sizes = dict(zip(mesh.axis_names, mesh.mesh_shape, strict=True))
    number = math.prod(sizes[axis] for axis in axes)
    spmd = importlib.import_module("torch_xla.distributed.spmd")

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "xla" and tensor.dim() and tensor.shape[0] and tensor.shape[0] % number == 0:
            spmd.mark_sharding(tensor, mesh, (axes, *[None] * (tensor.dim() - 1)))
        return tensor

    recursively_apply(spread, data)
