"""Clipping of gradients of which each rank may hold a part."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from accel_state.devices import device_backend_of
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@torch.no_grad()
def total_norm(gradients: Iterable[torch.Tensor], norm_type: float, *, device: torch.device) -> torch.Tensor:
    """Return the norm of all gradients as if they were one vector: a plain 0-dim tensor, alike on all ranks.

    Every rank of the meshes must call it with the same gradients in the same order; one all-reduce per sharded
    axis of each mesh. Plain tensors are taken to be the same on every rank.

    Args:
        gradients: `DTensor`s on any meshes, and plain tensors.
        norm_type: The exponent; ``inf`` for the largest absolute value.
        device: Where the norm is to be, and where collectives run.

    Raises:
        ConfigError: If the exponent is not positive, or a gradient has not been reduced.
    """
    if not norm_type > 0:
        raise ConfigError(f"`norm_type` must be above 0, got {norm_type!r}.")
    is_max = math.isinf(norm_type)
    parts: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[torch.Tensor]] = {}
    for gradient in gradients:
        mesh, axes = _sharded_axes(gradient)
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        parts.setdefault((mesh, axes), []).append(local)
    total = torch.zeros((), dtype=widest_float(device), device=device)
    for (mesh, axes), tensors in parts.items():
        part = _local_part(tensors, norm_type, is_max=is_max).to(total)
        for axis in axes:
            assert mesh is not None
            dist.all_reduce(
                part, dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM, group=mesh.get_group(axis)
            )
        total = torch.maximum(total, part) if is_max else total + part
    return (total if is_max else total ** (1.0 / norm_type)).float()


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float, *, device: torch.device
) -> torch.Tensor:
    """Scale the gradients of ``parameters`` so that their `total_norm` is at most ``max_norm``; return the norm before.

    Any subset of a model's parameters will do, the same on every rank, also of several models.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = total_norm(gradients, norm_type, device=device)
    scale_down(gradients, norm, max_norm)
    return norm


@torch.no_grad()
def scale_down(gradients: Iterable[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Scale gradients, whose norm is ``norm``, so that it is at most ``max_norm``; no communication."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if math.isfinite(max_norm):
        for (device, dtype), tensors in _by_device_and_dtype(gradients).items():
            torch._foreach_mul_(tensors, factor.to(device, dtype))


def _by_device_and_dtype(
    gradients: Iterable[torch.Tensor],
) -> dict[tuple[torch.device, torch.dtype], list[torch.Tensor]]:
    """Return what this rank holds, in lists that `_foreach` functions take in one kernel."""
    found: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        found.setdefault((local.device, local.dtype), []).append(local)
    return found


def _sharded_axes(gradient: torch.Tensor) -> tuple[DeviceMesh | None, tuple[int, ...]]:
    if not isinstance(gradient, DTensor):
        return None, ()
    for placement in gradient.placements:
        if placement.is_partial():
            raise ConfigError(
                f"A gradient has the placement {placement}, so it has not been reduced over all ranks yet. "
                "Clip gradients at the end of the accumulation."
            )
    axes = tuple(axis for axis, placement in enumerate(gradient.placements) if not placement.is_replicate())
    return gradient.device_mesh, axes


def _local_part(tensors: list[torch.Tensor], norm_type: float, *, is_max: bool) -> torch.Tensor:
    """Return the sum of powers, or the largest value, of what this rank holds."""
    filled = [tensor for tensor in tensors if tensor.numel()]
    if not filled:
        return torch.zeros((), dtype=widest_float(tensors[0].device), device=tensors[0].device)
    precise = any(tensor.dtype == torch.float64 for tensor in filled)
    norms = torch._foreach_norm(filled, norm_type, dtype=torch.float64 if precise else torch.float32)
    together = torch.stack(norms).to(widest_float(filled[0].device))
    return together.max() if is_max else together.pow(norm_type).sum()


@functools.cache
def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for a device that has no float64."""
    return torch.float64 if device_backend_of(device).supports(torch.float64) else torch.float32


@torch.no_grad()
def clip_values(parameters: Iterable[torch.Tensor], clip_value: float) -> None:
    """Clamp each gradient value to plus or minus ``clip_value``; no communication."""
    gradients = (parameter.grad for parameter in parameters if parameter.grad is not None)
    for tensors in _by_device_and_dtype(gradients).values():
        torch._foreach_clamp_min_(tensors, -clip_value)
        torch._foreach_clamp_max_(tensors, clip_value)
