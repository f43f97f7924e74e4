"""The loaders that a run has prepared and still uses."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, overload

from torch.utils.data import DataLoader


class PreparedLoaders(Sequence[DataLoader[Any]]):
    """Loaders in the order in which they were prepared, each once, for as long as somebody else holds them.

    A run that prepares a loader for each epoch has one at a time, not one more for each epoch that it has trained.
    A loader keeps its number, whatever is garbage-collected before or after it.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[DataLoader[Any]]] = {}
        self._num_added = 0

    def add(self, loader: DataLoader[Any]) -> None:
        """Note a loader unless it was noted before."""
        if not any(loader is one for one in self):
            self._references[self._num_added] = weakref.ref(loader)
            self._num_added += 1
            loader._is_accelerate_prepared = True  # where libraries look for it

    def extend(self, loaders: Iterable[DataLoader[Any]]) -> None:
        """Note several loaders."""
        for loader in loaders:
            self.add(loader)

    def clear(self) -> None:
        """Forget all."""
        self._references.clear()
        self._num_added = 0

    def by_number(self) -> dict[int, DataLoader[Any]]:
        """Return the loaders by number: how many were prepared before."""
        alive = {n: loader for n, one in self._references.items() if (loader := one()) is not None}
        self._references = {number: self._references[number] for number in alive}
        return alive

    def __len__(self) -> int:
        return len(self.by_number())

    @overload
    def __getitem__(self, index: int) -> DataLoader[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[DataLoader[Any]]: ...
    def __getitem__(self, index: int | slice) -> DataLoader[Any] | list[DataLoader[Any]]:
        return list(self.by_number().values())[index]

    def __iter__(self) -> Any:
        return iter(self.by_number().values())
