"""Clipping of gradients of which each rank holds a part of one flat vector."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist

from accel_backends.sharding.clipping import widest_float
from accel_state.errors import ConfigError


@torch.no_grad()
def clip_gradients(
    parameters: Sequence[torch.Tensor],
    max_norm: float,
    norm_type: float,
    *,
    sharded: Collection[int],
    is_accumulating: bool,
    group: dist.ProcessGroup,
    device: torch.device,
) -> torch.Tensor:
    """Scale gradients so that the norm of all together is at most ``max_norm``; return the norm before.

    Every rank must call it for the same parameters, of one model or several, all or some of them. The norm is a plain
    0-dim tensor, alike on all ranks. Gradients of an accumulation that is under way, of which each rank has its own,
    are only measured: their mean power counts.

    Args:
        parameters: Those whose gradients count; a rank may hold an empty part of one, and no gradient.
        max_norm: The largest norm that stays as it is.
        norm_type: The exponent; ``inf`` for the largest absolute value.
        sharded: The `id` of each parameter that is cut over ``group``; the gradients of others are the same on every
            rank.
        is_accumulating: Whether gradients have not been reduced.
        group: The ranks over which parameters are cut.
        device: Where the norm is to be, and where collectives run.

    Raises:
        ConfigError: If the exponent is not positive, or gradients to be clipped have not been reduced.
    """
    if not norm_type > 0:
        raise ConfigError(f"`norm_type` must be above 0, got {norm_type!r}.")
    parts = [one for one in parameters if id(one) in sharded]
    others = [one for one in parameters if id(one) not in sharded]
    own = torch.stack([_power(parts, norm_type), _power(others, norm_type), _is_unreduced(parts)])
    own = own.to(device, widest_float(device))
    is_max = math.isinf(norm_type)
    operation = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM
    found = own.clone()
    if parts:
        dist.all_reduce(found, operation, group=group)
    found[1] = own[1]
    if is_accumulating or found[2] > 0:
        if math.isfinite(max_norm):
            raise ConfigError(
                "A gradient has not been reduced over all ranks yet. Clip gradients at the end of the accumulation."
            )
        found = own
        dist.all_reduce(found, operation)
        found = found if is_max else found / dist.get_world_size()
    total = torch.maximum(found[0], found[1]) if is_max else (found[0] + found[1]) ** (1.0 / norm_type)
    norm = total.float()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if math.isfinite(max_norm):
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.device, parameter.grad.dtype))
    return norm


def _power(parameters: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    """Return the sum of powers, or the largest absolute value, of the gradients on this rank."""
    gradients = [one.grad for one in parameters if one.grad is not None and one.grad.numel()]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    precise = any(gradient.dtype == torch.float64 for gradient in gradients)
    norms = torch._foreach_norm(gradients, norm_type, dtype=torch.float64 if precise else torch.float32)
    together = torch.stack(norms).cpu().double()
    return together.max() if math.isinf(norm_type) else together.pow(norm_type).sum()


def _is_unreduced(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return 1 if this rank has a whole gradient beside a part of its parameter, else 0."""
    found = any(one.grad is not None and one.grad.shape != one.shape for one in parameters)
    return torch.tensor(float(found), dtype=torch.float64)
