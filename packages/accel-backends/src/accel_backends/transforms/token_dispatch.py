"""Tokens travel to the ranks that hold their experts, and what these compute travels back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from accel_backends.own_random_numbers import own_random_numbers
from accel_backends.wrapped_forward import WrappedForward
from accel_state.errors import ConfigError


class DispatchedExperts(WrappedForward):
    """The forward of a module with experts, of which each rank holds some, for the tokens of this rank.

    Every rank of the group must call it, also one whose experts get no token.

    Args:
        original: The module's own forward, with the same arguments.
        compute: Called with ``(rows, features)``, each row a token that chose an expert of this rank, and with the
            numbers of these experts among those of this rank; returns what they compute.
        num_experts: Experts on all ranks; each rank holds as many, those with the lowest numbers the first.
        group: The ranks over which they are spread.
        layer_mesh: The ranks that share each layer, and so have the same tokens, of which each sends a part.
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
        """Return ``(tokens, features)``: for each token the weighted sum of what its experts compute.

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
            own = self._dispatched(*parts)
        outputs = DTensor.from_local(
            own,
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
        counts = self._counts(chosen)
        arriving = torch.empty_like(counts)
        # Why: docs/decisions/0017-expert-parallelism.md
        dist.all_to_all_single(arriving, counts, group=self._group)
        # The host waits for the device: the exchange takes its sizes from the host.
        sent, received = counts.sum(1).tolist(), arriving.sum(1).tolist()
        rows = exchanged(hidden_states[order // top_k_index.shape[-1]], sent, received, self._group)
        places = torch.arange(arriving.shape[1], device=chosen.device).repeat(len(arriving))
        computed = self._compute(rows, places.repeat_interleave(arriving.flatten()))
        returned = exchanged(computed, received, sent, self._group)
        outputs = returned[order.argsort()].view(*top_k_index.shape, -1)
        return (outputs * top_k_weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)

    def _counts(self, chosen: torch.Tensor) -> torch.Tensor:
        """Return how many tokens go to each expert: ``(ranks, experts of a rank)``."""
        counts = torch.bincount(chosen, minlength=self._num_experts)
        if len(counts) > self._num_experts:
            raise ConfigError(
                f"A token chose expert {len(counts) - 1}, but there are {self._num_experts} experts. Let the router "
                "choose among these."
            )
        return counts.view(dist.get_world_size(self._group), -1)


def exchanged(
    rows: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Return the rows that the ranks of a group send to this one, those of the first rank first.

    Gradients travel back. Every rank must call it.

    Args:
        rows: What this rank sends, first what goes to the first rank.
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
