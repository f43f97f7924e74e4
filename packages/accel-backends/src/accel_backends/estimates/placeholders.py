"""Tensors with a shape and a device but no values: the parts of a model that other ranks hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from accel_ops.named_tensors import NamedTensor


def placeholder_of(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor like ``tensor`` on ``device`` that has no values and takes no memory.

    What is computed with it, on whatever other tensors, is a placeholder again.
    """
    with _mode():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return nn.Parameter(made, requires_grad=False) if isinstance(tensor, nn.Parameter) else made


def is_placeholder(value: object) -> TypeGuard[torch.Tensor]:
    """Tell whether ``value`` is a tensor without values."""
    return isinstance(value, FakeTensor)


def put(found: NamedTensor, tensor: torch.Tensor) -> None:
    """Let the modules that hold a parameter or buffer hold ``tensor`` in its place."""
    for module, key in found.places:
        held: dict[str, Any] = module._parameters if key in module._parameters else module._buffers
        held[key] = tensor


@contextmanager
def standing_in(tensors: Sequence[NamedTensor], values: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Let a model hold ``values`` in the block, which are numbered like its ``tensors``."""
    before = {number: held(tensors[number]) for number in values}
    try:
        for number, value in values.items():
            put(tensors[number], value)
        yield
    finally:
        for number, tensor in before.items():
            put(tensors[number], tensor)


def held(found: NamedTensor) -> torch.Tensor:
    """Return what the modules hold now as this parameter or buffer."""
    module, key = found.places[0]
    tensor: torch.Tensor = module._parameters[key] if key in module._parameters else module._buffers[key]  # type: ignore[assignment]
    return tensor


@cache
def _mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)
