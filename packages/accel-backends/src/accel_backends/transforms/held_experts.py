"""How a rank computes with its experts: stacked in each parameter, or modules of a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from accel_backends.transforms.token_dispatch import exchanged


class StackedExperts:
    """Experts that are stacked along the first dimension of each parameter, of which this rank has a part.

    Args:
        experts: The module that holds them; its parameters are `DTensor`s.
        gradient_scale: Factor for their gradients.
    """

    def __init__(self, experts: nn.Module, *, gradient_scale: float) -> None:
        self._experts = experts
        self._forward: Callable[..., torch.Tensor] = experts.forward
        self._gradient_scale = gradient_scale

    def __call__(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return what the module's own forward computes, each row of weight 1 for one expert."""
        is_idle = not len(rows)
        if is_idle:  # A row of zeros, so that parameters have gradients, and the backward pass communicates.
            rows, places = rows.sum(0, keepdim=True), places.new_zeros(1)
        with local_parameters(self._experts, partial(_local_part, gradient_scale=self._gradient_scale)):
            computed = self._forward(rows, places.unsqueeze(1), rows.new_ones(len(rows), 1))
        return computed[:0] if is_idle else computed


class ListedExperts:
    """Experts that are modules of a list. Each rank has some rows of all their parameters.

    So names and shapes stay those of the model on every rank. Before it computes, a rank is sent the other rows of
    its experts.

    Args:
        experts: The list; its parameters are `DTensor`s.
        group: The ranks over which they are spread.
        gradient_scale: Factor for their gradients.
    """

    def __init__(self, experts: nn.ModuleList, *, group: dist.ProcessGroup, gradient_scale: float) -> None:
        self._experts = experts
        self._group = group
        self._gradient_scale = gradient_scale
        self._num_ranks, self._rank = dist.get_world_size(group), dist.get_rank(group)

    def __call__(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return what the experts of this rank compute, each of its rows; one without rows is called with none."""
        whole = self._gathered()
        order = places.argsort(stable=True)
        # The host waits for the device: it starts one computation per expert, of as many rows.
        sizes = torch.bincount(places, minlength=len(whole)).tolist()
        first = self._rank * len(whole)
        computed = [
            torch.func.functional_call(self._experts[first + number], parameters, (own,))
            for number, (parameters, own) in enumerate(
                zip(whole, torch.split(rows[order], sizes), strict=True)
            )
        ]
        return torch.cat(computed)[order.argsort()]

    def _gathered(self) -> list[dict[str, torch.Tensor]]:
        """Return the whole parameters of the experts of this rank, by name."""
        experts = list(self._experts)
        num_own = len(experts) // self._num_ranks
        of_rank = [experts[begin : begin + num_own] for begin in range(0, len(experts), num_own)]
        parts = [
            [_local_part(one, self._gradient_scale).flatten() for expert in of for one in expert.parameters()]
            for of in of_rank
        ]
        own = of_rank[self._rank]
        shapes = [
            [_part_shape(one, sender, self._num_ranks) for expert in own for one in expert.parameters()]
            for sender in range(self._num_ranks)
        ]
        arrived = exchanged(
            torch.cat([part for to_rank in parts for part in to_rank]),
            [sum(part.numel() for part in to_rank) for to_rank in parts],
            [sum(shape.numel() for shape in from_rank) for from_rank in shapes],
            self._group,
        )
        pieces = iter(torch.split(arrived, [shape.numel() for from_rank in shapes for shape in from_rank]))
        of_sender = [[next(pieces).view(shape) for shape in from_rank] for from_rank in shapes]
        whole = iter([torch.cat(of_parameter) for of_parameter in zip(*of_sender, strict=True)])
        return [{name: next(whole) for name, _ in expert.named_parameters()} for expert in own]


@contextmanager
def local_parameters(experts: nn.Module, part_of: Callable[[Any], torch.Tensor]) -> Iterator[None]:
    """Let a module find this rank's part in place of each `DTensor` in the block.

    Args:
        experts: The module.
        part_of: Returns this rank's part of a parameter.
    """
    held: list[tuple[nn.Module, str, Any]] = [
        (owner, key, parameter)
        for owner in experts.modules()
        for key, parameter in owner._parameters.items()
        if parameter is not None
    ]
    for owner, key, parameter in held:
        owner._parameters[key] = part_of(parameter)  # type: ignore[assignment]
    try:
        yield
    finally:
        for owner, key, parameter in held:
            owner._parameters[key] = parameter


def _local_part(parameter: torch.Tensor, gradient_scale: float) -> torch.Tensor:
    """Return this rank's part of a `DTensor`, whose gradient is multiplied by a factor."""
    assert isinstance(parameter, DTensor)
    local: Any = parameter.to_local()
    if local.requires_grad:
        local.register_hook(lambda gradient: gradient * gradient_scale)
    return local  # type: ignore[no-any-return]


def _part_shape(parameter: torch.Tensor, rank: int, num_ranks: int) -> torch.Size:
    """Return the shape of the part of a parameter that a rank has; full parts come first, as torch divides."""
    num_rows = -(-len(parameter) // num_ranks)
    return torch.Size((max(0, min(num_rows, len(parameter) - rank * num_rows)), *parameter.shape[1:]))
