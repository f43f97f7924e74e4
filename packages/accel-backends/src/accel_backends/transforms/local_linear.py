"""The forward of a linear layer on this rank's rows of its weight, which torch's styles cannot choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from accel_backends.wrapped_forward import WrappedForward


class LocalLinear(WrappedForward):
    """The forward of `torch.nn.Linear` with plain tensors.

    Args:
        original: The forward that it takes the place of.
        mesh: The ranks that share the layer, along one axis.
        inputs: How they hold the inputs.
        rows: Which of the rows of its part of the weight this rank computes with.
        gradient: How they hold the gradient of the weight; if omitted, as the weight.
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
