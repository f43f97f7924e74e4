"""Gradients of parameters that stages of several ranks use, such as tied embeddings: the sum on each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist

from accel_backends.pipeline.stages import StagedModel
from accel_checkpoint.pieces import local_part, wrap_like


def shared_parameters(staged: StagedModel) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield the numbers of trained parameters that several ranks use, and their places in the pipeline."""
    for number, users in enumerate(staged.holders):
        if len(users) > 1 and staged.tensors[number].tensor.requires_grad:
            yield number, users


def with_gradient(staged: StagedModel) -> frozenset[int]:
    """Return the numbers of the shared parameters that have a gradient."""
    return frozenset(
        number for number, _ in shared_parameters(staged) if staged.tensors[number].tensor.grad is not None
    )


def detach_shared(staged: StagedModel) -> dict[int, torch.Tensor]:
    """Detach and return the gradients of shared parameters, which have been summed over stages."""
    taken = {}
    for number, _ in shared_parameters(staged):
        tensor = staged.tensors[number].tensor
        if tensor.grad is not None:
            taken[number], tensor.grad = tensor.grad, None
    return taken


@torch.no_grad()
def restore_shared(staged: StagedModel, earlier: Mapping[int, torch.Tensor]) -> None:
    """Restore the gradients of shared parameters from `detach_shared`."""
    for number, _ in shared_parameters(staged):
        staged.tensors[number].tensor.grad = earlier.get(number)


@torch.no_grad()
def reduce_shared(
    staged: StagedModel,
    earlier: Mapping[int, torch.Tensor],
    used: Sequence[frozenset[int]],
    *,
    place: int,
    ranks: Sequence[int],
) -> None:
    """Sum the gradients of each shared parameter over the ranks that use it. All stages together.

    ``earlier`` are the sums of earlier batches; ``used`` are the parameters with a gradient on each of the ``ranks``
    of the pipeline, of which this one has the index ``place``.
    """
    for number, users in shared_parameters(staged):
        tensor = staged.tensors[number].tensor
        if place not in users:
            continue
        if not any(number in numbers for numbers in used):
            tensor.grad = earlier.get(number)
            continue
        total = torch.zeros_like(local_part(tensor)) if tensor.grad is None else local_part(tensor.grad)
        total = _summed(total.contiguous(), [ranks[user] for user in sorted(users)])
        if number in earlier:
            total = total + local_part(earlier[number])
        tensor.grad = wrap_like(tensor, total)


def _summed(own: torch.Tensor, ranks: Sequence[int]) -> torch.Tensor:
    """Return the sum of the tensors of ``ranks``, one of which is this one: the same bits on all of them."""
    first, *others = ranks
    if dist.get_rank() != first:
        total = torch.empty_like(own)
        dist.send(own, first)
        dist.recv(total, first)
        return total
    total, part = own.clone(), torch.empty_like(own)
    for rank in others:
        dist.recv(part, rank)
        total += part
    for rank in others:
        dist.send(total, rank)
    return total
