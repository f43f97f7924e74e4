"""Tensors with a shape and a device but no values, for a run of a model that only counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from accel_ops.named_tensors import NamedTensor


def placeholder_of(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor like ``tensor`` on ``device`` without values or memory; operations on it return such tensors."""
    with _mode():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


@contextmanager
def swapped_tensors(tensors: Sequence[NamedTensor], values: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Replace parameters and buffers of a model in the block by ``values``, which are numbered like ``tensors``."""
    before = []
    for number, value in values.items():
        for module, key in tensors[number].places:
            owner: dict[str, torch.Tensor | None] = (
                module._parameters if key in module._parameters else module._buffers  # type: ignore[assignment]
            )
            before.append((owner, key, owner[key]))
            owner[key] = value
    try:
        yield
    finally:
        for owner, key, tensor in before:
            owner[key] = tensor


@cache
def _mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)
