"""A tensor that is fetched when it is written, so that a state never has to be in memory as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.shared_tensors import aliases


@dataclass(slots=True, eq=False)
class DeferredTensor:
    """Type and shape of a tensor, and how to get it.

    Attributes:
        dtype: Its number format.
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


def second_names_in(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the names whose tensor an earlier name has too, with that one; other values are left out."""
    known = aliases({name: value for name, value in state.items() if isinstance(value, torch.Tensor)})
    return known | second_deferred_names(state)


def second_deferred_names(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the names whose deferred tensor an earlier name has too, with that one."""
    first: dict[int, str] = {}
    deferred = {
        name: first.setdefault(id(value), name)
        for name, value in state.items()
        if isinstance(value, DeferredTensor)
    }
    return {name: kept for name, kept in deferred.items() if name != kept}


def deferred_in(content: Any) -> list[DeferredTensor]:
    """Return the deferred tensors in nested containers, each once, in the order of the containers."""
    deferred: dict[int, DeferredTensor] = {}
    _collect(content, deferred)
    return list(deferred.values())


def _collect(content: Any, deferred: dict[int, DeferredTensor]) -> None:
    if isinstance(content, DeferredTensor):
        deferred.setdefault(id(content), content)
    elif isinstance(content, Mapping):
        for value in content.values():
            _collect(value, deferred)
    elif isinstance(content, (list, tuple)):
        for value in content:
            _collect(value, deferred)


def is_deferred(state: Mapping[str, Any]) -> bool:
    """Whether a state has a deferred tensor."""
    return any(isinstance(value, DeferredTensor) for value in state.values())


class FetchedOnAccess(Mapping[str, Any]):
    """A state whose deferred tensors are fetched when they are asked for, and not kept.

    Args:
        state: The state.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Any:
        value = self._state[name]
        return value.fetch() if isinstance(value, DeferredTensor) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)
