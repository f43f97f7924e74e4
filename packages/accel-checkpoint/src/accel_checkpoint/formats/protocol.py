"""The interface of a weight file format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from accel_checkpoint.formats.weight_names import WeightFormat


class WeightWriter(Protocol):
    """Writes a state dict to files of one format."""

    @property
    def names(self) -> WeightFormat:
        """The file names of the format."""
        ...

    def groups(self) -> Iterable[tuple[Sequence[str], int]]:
        """Yield groups of names that must go into the same file, with their size in bytes."""
        ...

    def write(self, path: Path, members: Sequence[str]) -> None:
        """Write the tensors called ``members`` to a new file."""
        ...


class WeightReader(Protocol):
    """The content of one open file; tensors are read on request."""

    def keys(self) -> Iterator[str]:
        """Yield the names in the file, second names of tied weights included."""
        ...

    def shape(self, name: str) -> torch.Size | None:
        """Return the shape of a tensor without reading it, ``None`` for other values."""
        ...

    def read(self, name: str) -> Any:
        """Return a tensor on the CPU, or another value. Copy it before changing it."""
        ...


class OpenWeights(Protocol):
    """Opens a file for reading; the reader may be used until the context ends."""

    def __call__(self, path: Path) -> AbstractContextManager[WeightReader]:
        """Open ``path``; raises ``CheckpointError`` if it is not a file of this format."""
        ...
