"""PowerSGD over a whole bucket of gradients, as one square matrix.

torch's own ``batched_powerSGD_hook`` raises an ``AssertionError`` as soon as it compresses, as of torch 2.13:
it hands matrices to a function that was made for batches of them. This file can go when that one works.
Vogels, Karimireddy, Jaggi: PowerSGD (NeurIPS 2019), algorithm 2.
"""

# No `from __future__ import annotations`: DDP compares the annotations of a hook with the types themselves.
import math
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

Averaged = torch.futures.Future[torch.Tensor]

_FACTORED = (torch.float32, torch.float64)


def batched_power_sgd_hook(state: PowerSGDState, bucket: GradBucket) -> Averaged:
    """Average a bucket over the ranks, compressed to two thin matrices once ``state`` says it is time.

    Args:
        state: Rank of the approximation, errors and factors kept between steps; one per model.
        bucket: Gradients as one flat buffer, which is overwritten.
    """
    group: Any = state.process_group or dist.group.WORLD
    world_size = dist.get_world_size(group)
    buffer = bucket.buffer()
    is_compressing = state.iter >= state.start_powerSGD_iter
    state.maybe_increase_iter(bucket)  # type: ignore[no-untyped-call]
    if not is_compressing:
        return _all_reduce(buffer.div_(world_size), group).then(lambda done: done.value()[0])

    index = bucket.index()
    matrix = _square(buffer)
    if state.use_error_feedback and index in state.error_dict:
        matrix += state.error_dict[index]
    left = matrix @ _right_factor(state, index, matrix)

    def decompress(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        basis = _orthonormal(done.value()[0])
        right = matrix.T @ basis
        dist.all_reduce(right, group=group)
        right /= world_size
        average = basis @ right.T
        if state.use_error_feedback:
            state.error_dict[index] = matrix - average
        if state.warm_start:
            state.q_memory_dict[index] = right
        return buffer.copy_(average.flatten()[: buffer.numel()])

    return _all_reduce(left, group).then(decompress)


def _all_reduce(tensor: torch.Tensor, group: Any) -> torch.futures.Future[list[torch.Tensor]]:
    future: torch.futures.Future[list[torch.Tensor]]
    future = dist.all_reduce(tensor, group=group, async_op=True).get_future()
    return future


def _orthonormal(columns: torch.Tensor) -> torch.Tensor:
    basis: torch.Tensor = torch.linalg.qr(columns).Q
    return basis


def _square(buffer: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``buffer`` as a square matrix, filled up with zeros, in a type that QR knows."""
    side = math.ceil(math.sqrt(buffer.numel()))
    dtype = buffer.dtype if buffer.dtype in _FACTORED else torch.float32
    matrix = torch.zeros(side * side, dtype=dtype, device=buffer.device)
    matrix[: buffer.numel()] = buffer
    return matrix.view(side, side)


def _right_factor(state: PowerSGDState, index: int, matrix: torch.Tensor) -> torch.Tensor:
    """Return orthonormal columns to project on: the last step's, or random ones, alike on all ranks."""
    side = matrix.shape[0]
    found = state.q_memory_dict.get(index)
    if found is None:
        generator = torch.Generator().manual_seed(int(state.rng.randint(1_000_000_000)))
        rank = min(state.matrix_approximation_rank, side)
        found = torch.randn(side, rank, generator=generator).to(matrix)
    return _orthonormal(found)
