"""What one rank holds of a model or an optimizer, for the format in which each rank reads only what it wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


class OwnState(Mapping[str, Any]):
    """A part of a state, in the form in which this rank holds it: tensors and plain values by their keys.

    The tensors of a model are its memory.

    Args:
        values: They.
        cut: By the key of each tensor, plain data that says of which tensors it is a part, and which. None if this
            rank holds tensors under their own names instead.
        rank: This process.
        num_ranks: How many processes hold the whole together.
    """

    def __init__(
        self, values: Mapping[str, Any], *, cut: Mapping[str, Any] | None, rank: int, num_ranks: int
    ) -> None:
        self._values = values
        self.cut = cut
        self.rank = rank
        self.num_ranks = num_ranks

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @torch.no_grad()
    def fill(self, saved: Mapping[str, Any]) -> None:
        """Copy the values of a state that was cut alike into the tensors of this one."""
        for key, own in self._values.items():
            own.copy_(saved[key])
