"""Tokens are sent to the ranks that store their experts, and the results are sent back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from accel_backends.local_parameters import local_parameters
from accel_backends.own_random_numbers import own_random_numbers
from accel_backends.wrapped_forward import WrappedForward
from accel_state.errors import ConfigError


class DispatchedExperts(WrappedForward):
    """The forward of a module whose experts are sharded over EP ranks, for the tokens of this rank.

    Every rank of the group must call it, also one whose experts get no token.

    Args:
        original: The module's own forward, with the same arguments.
        compute: Called with ``(rows, features)``, each row a token that chose a local expert, and with the local
            numbers of these experts; returns their outputs.
        num_experts: Experts on all ranks; each rank stores as many, the first those with the lowest numbers.
        group: The EP ranks.
        layer_mesh: The TP ranks, which have the same tokens, of which each sends a part.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        *,
        compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        num_experts: int,
        group: dist.ProcessGroup,
        layer_mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__(original)
        self._layer_mesh = layer_mesh
        self._compute = compute
        self._num_experts = num_experts
        self._group = group

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return ``(tokens, features)``: for each token the weighted sum of the outputs of its experts.

        Args:
            hidden_states: ``(tokens, features)``.
            top_k_index: ``(tokens, choices)``, the numbers of the experts.
            top_k_weights: ``(tokens, choices)``.
        """
        mesh = self._layer_mesh
        if mesh is None:
            return self._dispatched(hidden_states, top_k_index, top_k_weights)
        alike = [
            DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
            for tensor in (hidden_states, top_k_index, top_k_weights)
        ]
        parts = [tensor.redistribute(placements=[Shard(0)]).to_local() for tensor in alike]
        # Each rank's experts get other tokens, of other numbers; between experts, ranks drop out alike.
        with own_random_numbers(mesh.get_local_rank(), hidden_states.device):
            local = self._dispatched(*parts)
        outputs = DTensor.from_local(
            local,
            mesh,
            [Shard(0)],
            run_check=False,
            shape=hidden_states.shape,
            stride=hidden_states.stride(),
        )
        # A copy: a view would lose the hooks of FSDP if it is changed in place.
        return outputs.full_tensor().clone()

    def _dispatched(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        chosen = top_k_index.flatten()
        order = chosen.argsort(stable=True)  # by expert, and so by rank
        arriving, sent, received = self._counts(chosen)
        rows = exchanged(hidden_states[order // top_k_index.shape[-1]], sent, received, self._group)
        numbers = torch.arange(arriving.shape[1], device=chosen.device).repeat(len(arriving))
        # With the size of its output, torch does not read it back from the device.
        numbers = numbers.repeat_interleave(arriving.flatten(), output_size=len(rows))
        returned = exchanged(self._compute(rows, numbers), received, sent, self._group)
        outputs = returned[order.argsort()].view(*top_k_index.shape, -1)
        return (outputs * top_k_weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)

    def _counts(self, chosen: torch.Tensor) -> tuple[torch.Tensor, list[int], list[int]]:
        """Return how many tokens each local expert gets from each rank, and how many go to and come from each rank.

        The host waits once for the device: an exchange takes its sizes from the host. `bincount` would wait too.

        Returns:
            ``(ranks, experts of a rank)`` on the device, and two lists by rank.
        """
        num_ranks, num_experts = dist.get_world_size(self._group), self._num_experts
        # One more, for numbers of experts that do not exist.
        with_unknown = chosen.new_zeros(num_experts + 1)
        with_unknown.scatter_add_(0, chosen.clamp(max=num_experts), torch.ones_like(chosen))
        counts = with_unknown[:num_experts].view(num_ranks, -1)
        arriving = torch.empty_like(counts)
        # Why: docs/decisions/0017-expert-parallelism.md
        dist.all_to_all_single(arriving, counts, group=self._group)
        sizes = torch.cat([counts.sum(1), arriving.sum(1), with_unknown[num_experts:]]).tolist()
        if sizes[-1]:
            raise ConfigError(
                f"A token chose expert {int(chosen.max())}, but there are {num_experts} experts. Let the router "
                "choose among these."
            )
        return arriving, sizes[:num_ranks], sizes[num_ranks:-1]


class LocalExperts:
    """The local experts, stacked along the first dimension of each parameter.

    Args:
        experts: The module that holds them; its parameters are `DTensor`s. Its own forward computes: those of
            transformers by grouped matrix products where torch has them.
        gradient_scale: Factor for their gradients.
    """

    def __init__(self, experts: nn.Module, *, gradient_scale: float) -> None:
        self._experts = experts
        self._forward: Callable[..., torch.Tensor] = experts.forward
        self._gradient_scale = gradient_scale

    def __call__(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the module's own forward, each row of weight 1 for one expert."""
        is_idle = not len(rows)
        if is_idle:  # A row of zeros, so that parameters have gradients, and the backward pass communicates.
            rows, numbers = rows.sum(0, keepdim=True), numbers.new_zeros(1)
        with local_parameters(self._experts, partial(_local_shard, gradient_scale=self._gradient_scale)):
            computed = self._forward(rows, numbers.unsqueeze(1), rows.new_ones(len(rows), 1))
        return computed[:0] if is_idle else computed


def _local_shard(parameter: torch.Tensor, gradient_scale: float) -> torch.Tensor:
    """Return the local shard of a `DTensor`, whose gradient is multiplied by a factor."""
    assert isinstance(parameter, DTensor)
    local: Any = parameter.to_local()
    if local.requires_grad:
        local.register_hook(lambda gradient: gradient * gradient_scale)
    return local  # type: ignore[no-any-return]


def exchanged(
    rows: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Return the rows that the ranks of a group send to this one, in the order of the ranks.

    Gradients are sent back. Every rank must call it.

    Args:
        rows: What this rank sends, in the order of the ranks.
        sent: How many rows go to each rank.
        received: How many come from each.
        group: The ranks.
    """
    arrived: torch.Tensor = _Exchange.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return arrived


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _sent(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _sent(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _sent(rows: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived
