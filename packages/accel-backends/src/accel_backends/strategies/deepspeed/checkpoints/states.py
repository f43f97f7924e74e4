"""States of an engine that are fetched one tensor at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from accel_checkpoint.tensors import DeferredTensor, fetched


class EngineState(dict[str, Any]):
    """A state of what an engine trains; its tensors are deferred, and the engine can save it in its own files too.

    Args:
        content: The state.
        engine: The engine.
    """

    def __init__(self, content: Mapping[str, Any], *, engine: Any) -> None:
        super().__init__(content)
        self.engine = engine


class SavedWeights(dict[str, Any]):
    """The weights in the files of an engine, and what else the engine needs to go on.

    Args:
        content: The weights.
        counters: How far the engine had come.
    """

    def __init__(self, content: Mapping[str, Any], *, counters: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.counters = counters


@dataclass(slots=True, eq=False)
class SavedTensor(DeferredTensor):
    """A tensor that lies in several files, mapped into memory.

    Attributes:
        fragments: Its values, flattened, in their order.
    """

    fragments: Sequence[torch.Tensor] = ()

    @classmethod
    def of(cls, shape: Sequence[int], fragments: Sequence[torch.Tensor]) -> SavedTensor:
        """Return the tensor of these parts."""
        return cls(
            fragments[0].dtype, torch.Size(shape), partial(_joined, fragments, shape), fragments=fragments
        )

    def part(self, offset: int, numel: int) -> torch.Tensor:
        """Return some of its values, flattened; only they are read."""
        found, begin = [], 0
        for fragment in self.fragments:
            first, last = max(offset - begin, 0), min(offset + numel - begin, fragment.numel())
            if first < last:
                found.append(fragment[first:last])
            begin += fragment.numel()
        return found[0] if len(found) == 1 else torch.cat(found)


def part_of(value: Any, offset: int, numel: int) -> torch.Tensor:
    """Return some values of a whole tensor, flattened, without reading the others if that is possible."""
    if isinstance(value, SavedTensor):
        return value.part(offset, numel)
    return fetched(value).reshape(-1).narrow(0, offset, numel)


def _joined(fragments: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    if math.prod(shape) == 0:
        return torch.empty(tuple(shape), dtype=fragments[0].dtype)
    return torch.cat(list(fragments)).view(tuple(shape))
