"""A tensor that is fetched when it is written, so that a state never has to be in memory as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.shared_tensors import Name, aliases


@dataclass(slots=True, eq=False)
class DeferredTensor:
    """Type and shape of a tensor, and how to get it.

    Attributes:
        dtype: Its dtype.
        shape: Its shape.
        get: Returns it, on any device; it may be a collective.
        num_fetched: How often it was fetched.
    """

    dtype: torch.dtype
    shape: torch.Size
    get: Callable[[], torch.Tensor]
    num_fetched: int = 0

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def fetch(self) -> torch.Tensor:
        """Return the tensor."""
        self.num_fetched += 1
        return self.get()


def fetched(value: torch.Tensor | DeferredTensor) -> torch.Tensor:
    """Return the tensor."""
    return value.fetch() if isinstance(value, DeferredTensor) else value


@contextmanager
def fetching_all(order: Sequence[DeferredTensor]) -> Iterator[None]:
    """Fetch, at the end of the block, the tensors that it did not, since other ranks wait in their collectives."""
    before = [tensor.num_fetched for tensor in order]
    try:
        yield
    finally:  # also after an error, such as a full disk
        for tensor, count in zip(order, before, strict=True):
            if tensor.num_fetched == count:
                tensor.fetch()


def second_names_in(state: Mapping[Name, Any]) -> dict[Name, Name]:
    """Return the names whose tensor an earlier name has too, with that one; other values are left out."""
    first: dict[int, Name] = {}
    second: dict[Name, Name] = {}
    tensors: dict[Name, torch.Tensor] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, DeferredTensor) and first.setdefault(id(value), name) != name:
            second[name] = first[id(value)]
    return second | (aliases(tensors) if len(tensors) > 1 else {})


class FetchedOnAccess(Mapping[str, Any]):
    """A state whose deferred tensors are fetched when they are asked for, and not kept.

    Args:
        state: The state.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Any:
        return fetched(self._state[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)
