"""Tensor parallelism of stacked experts: each rank has a shard of every expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import _StridedShard

from accel_backends.local_parameters import local_parameters
from accel_backends.tensor_parallel.styles import CutStyle, divisors
from accel_backends.wrapped_forward import WrappedForward
from accel_state.errors import ConfigError

CUT_EXPERTS = "moe_tp_experts"
"""The style of a module whose parameters are stacks of matrices, one of each expert, and have styles of their own."""


@dataclass(frozen=True, slots=True)
class _StackStyle:
    """How each matrix of a stack is sharded.

    Attributes:
        dim: The dimension, counted from the last.
        num_blocks: Matrices of one size that are stacked along it, each of which is sharded.
    """

    dim: int
    num_blocks: int = 1

    def placement(self, stack: torch.Tensor) -> Placement:
        """Return the placement of the parameter."""
        dim = stack.dim() + self.dim
        return Shard(dim) if self.num_blocks == 1 else _StridedShard(dim, split_factor=self.num_blocks)


_STACK_STYLES = {
    "colwise": _StackStyle(-2),
    "rowwise": _StackStyle(-1),
    "packed_colwise": _StackStyle(-2, 2),
    "packed_rowwise": _StackStyle(-1, 2),
}


class ExpertsParallel(ParallelStyle):
    """Shards every expert; inputs are replicated, and outputs are summed over the ranks.

    Args:
        placements: The placement of each parameter.
    """

    def __init__(self, placements: Mapping[str, Placement]) -> None:
        super().__init__()
        self._placements = placements

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for key, placement in self._placements.items():
            whole = module.get_parameter(key)
            cut = distribute_tensor(whole, device_mesh, [placement], src_data_rank=self.src_data_rank)
            module.register_parameter(key, nn.Parameter(cut, requires_grad=whole.requires_grad))
        module.forward = SummedExperts(module.forward, module, device_mesh)
        return module


class SummedExperts(WrappedForward):
    """The forward of sharded experts: partial outputs are summed over the ranks.

    So are the gradients of hidden states and routing weights, which are partial too.

    Args:
        original: The module's own forward; it takes and returns plain tensors.
        experts: The module; its parameters are `DTensor`s.
        mesh: The TP ranks, along one axis.
    """

    def __init__(self, original: Callable[..., Any], experts: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__(original)
        self._experts = experts
        self._mesh = mesh

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the outputs of all experts; every TP rank must call it, with the same inputs."""
        shared = [self._shared(one) for one in args]
        named = {key: self._shared(one) for key, one in kwargs.items()}
        with local_parameters(self._experts, lambda parameter: parameter.to_local()):
            own = self.original(*shared, **named)
        summed = DTensor.from_local(own, self._mesh, [Partial()], run_check=False)
        # A copy: a view cannot be changed in place, as some models do when they add what other layers compute.
        return summed.redistribute(placements=[Replicate()]).to_local().clone()

    def _shared(self, given: Any) -> Any:
        """Return an input whose gradient, if it has one, is summed over the ranks."""
        if not isinstance(given, torch.Tensor) or not given.is_floating_point():
            return given
        whole = DTensor.from_local(given, self._mesh, [Replicate()], run_check=False)
        return whole.to_local(grad_placements=[Partial()])


def styles_of_experts(
    modules: Mapping[str, nn.Module], styled: Mapping[str, str], *, num_ranks: int
) -> dict[str, CutStyle]:
    """Return the style of each module of experts that has the style `CUT_EXPERTS` in the plan, by name.

    Args:
        modules: All modules of the model.
        styled: The styles of the plan, of modules and parameters.
        num_ranks: The number of TP ranks.

    Raises:
        ConfigError: If a parameter of such a module cannot be sharded, or has no style.
    """
    return {
        name: _experts_style(name, modules[name], styled, num_ranks=num_ranks)
        for name, style in styled.items()
        if style == CUT_EXPERTS and name in modules
    }


def _experts_style(name: str, experts: nn.Module, styled: Mapping[str, str], *, num_ranks: int) -> CutStyle:
    placements = {
        key: _placement(f"{name}.{key}", stack, styled.get(f"{name}.{key}"), num_ranks=num_ranks)
        for key, stack in experts.named_parameters()
    }
    for inner in (key for key in styled if key.startswith(f"{name}.")):
        if inner.removeprefix(f"{name}.") not in placements:
            raise ConfigError(
                f"`{inner}` is a module among the experts of `{name}`, to which the plan gives the style "
                f"`{styled[inner]}`. Ranks (`tp_size`) can share stacked parameters of experts alone. {_WAY_OUT}"
            )
    dims = {key: placement.dim for key, placement in placements.items()}  # type: ignore[attr-defined]
    return CutStyle(partial(ExpertsParallel, placements), dims=dims)


def _placement(name: str, stack: torch.Tensor, style: str | None, *, num_ranks: int) -> Placement:
    chosen = _STACK_STYLES.get(style or "")
    if chosen is None or stack.dim() != 3:
        known = ", ".join(f"`{one}`" for one in _STACK_STYLES)
        raise ConfigError(
            f"`{name}`, a parameter of experts of shape {tuple(stack.shape)}, has "
            f"{f'the style `{style}`' if style else 'no style'} in the plan of the model, by which {num_ranks} ranks "
            f"(`tp_size`) cannot share it: they share stacks of matrices, (experts, rows, columns), by {known}. "
            f"{_WAY_OUT}"
        )
    size, left = divmod(stack.shape[chosen.dim], chosen.num_blocks)
    if left or size % num_ranks:
        blocks = "" if chosen.num_blocks == 1 else f"{chosen.num_blocks} times "
        raise ConfigError(
            f"`{name}` has the style `{style}`, but `tp_size` {num_ranks} does not divide the {blocks}{size} "
            f"{'rows' if chosen.dim == -2 else 'columns'} of each expert. Choose a `tp_size` that does: "
            f"{divisors(size)}; or spread experts over ranks with `ep_size`."
        )
    return chosen.placement(stack)


_WAY_OUT = "Set `tp_size` to 1, or spread whole experts over ranks with `ep_size`, where the model has a plan for it."
