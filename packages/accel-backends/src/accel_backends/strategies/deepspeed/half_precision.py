"""A model whose parameters are 16 bits wide: outputs are returned in fp32 as elsewhere, inputs cast on request."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accel_backends.precisions.forward import wrap_forward
from accel_ops.nested.structures import recursively_apply

_MARK = "_accel_cast_inputs"


def convert_outputs(model: nn.Module, dtype: torch.dtype, *, device_type: str, casts_inputs: bool) -> None:
    """Return fp32 from ``model``, and cast floating-point inputs to ``dtype`` with ``casts_inputs``."""
    wrap_forward(model, device_type=device_type, dtype=dtype, enabled=False)
    if casts_inputs and model.__dict__.get(_MARK) is None:
        model.__dict__[_MARK] = model.register_forward_pre_hook(_CastInputs(dtype), with_kwargs=True)


class _CastInputs:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        return recursively_apply(self._cast, args), recursively_apply(self._cast, kwargs)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor
