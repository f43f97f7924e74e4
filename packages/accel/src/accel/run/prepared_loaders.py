"""The loaders that a run has prepared and still uses."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, overload

from torch.utils.data import DataLoader


class PreparedLoaders(Sequence[DataLoader[Any]]):
    """Loaders in the order in which they were prepared, each once, for as long as somebody else holds them.

    A run that prepares a loader for each epoch has one at a time, not one more for each epoch that it has trained.
    """

    def __init__(self) -> None:
        self._references: list[weakref.ref[DataLoader[Any]]] = []

    def add(self, loader: DataLoader[Any]) -> None:
        """Note a loader unless it was noted before."""
        if not any(loader is one for one in self):
            self._references.append(weakref.ref(loader))
            loader._is_accelerate_prepared = True  # where libraries look for it

    def extend(self, loaders: Iterable[DataLoader[Any]]) -> None:
        """Note several loaders."""
        for loader in loaders:
            self.add(loader)

    def clear(self) -> None:
        """Forget all."""
        self._references.clear()

    def _held(self) -> list[DataLoader[Any]]:
        held = [(reference, loader) for reference in self._references if (loader := reference()) is not None]
        self._references = [reference for reference, _ in held]
        return [loader for _, loader in held]

    def __len__(self) -> int:
        return len(self._held())

    @overload
    def __getitem__(self, index: int) -> DataLoader[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[DataLoader[Any]]: ...
    def __getitem__(self, index: int | slice) -> DataLoader[Any] | list[DataLoader[Any]]:
        return self._held()[index]

    def __iter__(self) -> Any:
        return iter(self._held())
