"""Linear layers on rows of a weight that torch's styles cannot select."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import _StridedShard

from accel_backends.wrapped_forward import WrappedForward


class LocalLinear(WrappedForward):
    """The forward of `torch.nn.Linear` with plain tensors.

    Args:
        original: The forward that it replaces.
        mesh: The TP ranks, along one axis.
        inputs: The placement of the inputs.
        rows: The rows of the local weight that this rank computes with.
        gradient: The placement of the gradient of the weight; by default that of the weight.
    """

    def __init__(
        self,
        original: Any,
        mesh: DeviceMesh,
        *,
        inputs: Placement | None = None,
        rows: slice | None = None,
        gradient: Sequence[Placement] | None = None,
    ) -> None:
        super().__init__(original)
        self._mesh = mesh
        self._inputs = inputs or Replicate()
        self._rows = rows or slice(None)
        self._gradient = gradient

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        layer = self.original.__self__  # type: ignore[attr-defined]
        given = DTensor.from_local(inputs, self._mesh, [self._inputs], run_check=False)
        # Each rank has the part of the gradient of the inputs that comes from its outputs.
        whole = given.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        bias = None if layer.bias is None else self._own_rows(layer.bias)
        return nn.functional.linear(whole, self._own_rows(layer.weight), bias)

    def _own_rows(self, parameter: DTensor) -> torch.Tensor:
        return parameter.to_local(grad_placements=self._gradient)[self._rows]


class PackedColwise(ParallelStyle):
    """Shards each of several matrices that are stacked in a weight, such as query, key and value, by outputs.

    Args:
        num_blocks: Matrices in the weight, of one size.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self._num_blocks = num_blocks

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for key, whole in list(module.named_parameters(recurse=False)):
            placement = _StridedShard(0, split_factor=self._num_blocks)
            cut = distribute_tensor(whole, device_mesh, [placement], src_data_rank=self.src_data_rank)
            module.register_parameter(key, nn.Parameter(cut, requires_grad=whole.requires_grad))
        module.forward = LocalLinear(module.forward, device_mesh)
        return module
