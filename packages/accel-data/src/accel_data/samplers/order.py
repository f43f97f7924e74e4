"""The order of an epoch as a sequence, for samplers whose order can be drawn without iterating them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import torch
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

_BLOCK = 1 << 14


class TensorOrder(Sequence[int]):
    """A drawn order whose numbers become Python integers one block at a time, so that an epoch starts at once."""

    def __init__(self, drawn: torch.Tensor, *, finish: Callable[[], object] | None = None) -> None:
        """Wrap ``drawn``; ``finish`` draws what the sampler draws at the end of the epoch without using it."""
        self._drawn = drawn
        self.finish = finish
        self._length = len(drawn)
        self._low = 0
        self._block: list[int] = []

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, int):
            return int(self._drawn[index])
        low, high, _ = index.indices(self._length)
        begin = low - self._low
        if begin < 0 or high > self._low + len(self._block):
            self._low, begin = low, 0
            self._block = self._drawn[low : max(high, low + _BLOCK)].tolist()
        return self._block[begin : begin + high - low]


def draw_order(sampler: Iterable[int], generator: torch.Generator | None = None) -> Sequence[int] | None:
    """Draw the order of one epoch from ``sampler``, or return None if it is known only by iterating.

    The numbers, and the draws from each generator, are the same as when the sampler is iterated.

    Args:
        sampler: The sampler.
        generator: Replaces its generator. None: its own, or torch's default one if it has none.
    """
    if isinstance(sampler, (list, tuple, range)):
        return sampler
    draw = _DRAWS.get(type(sampler).__iter__)
    if draw is None:
        return None
    order: Sequence[int] = draw(sampler, generator or getattr(sampler, "generator", None))
    return order


def has_order(sampler: Iterable[int]) -> bool:
    """Tell whether `draw_order` returns an order for ``sampler``."""
    return isinstance(sampler, (list, tuple, range)) or type(sampler).__iter__ in _DRAWS


def _draw_sequential(sampler: Any, generator: torch.Generator | None) -> Sequence[int]:
    return range(len(sampler.data_source))


def _draw_random(sampler: Any, generator: torch.Generator | None) -> Sequence[int]:
    if generator is None:
        generator = torch.Generator().manual_seed(draw_seed())
    return draw_random(sampler, generator)


def draw_seed() -> int:
    """Draw the seed of an epoch from torch's default generator, as `RandomSampler` does."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def draw_random(sampler: RandomSampler, generator: torch.Generator) -> TensorOrder:
    """Draw what `RandomSampler` yields in one epoch, from ``generator``."""
    size, wanted = len(sampler.data_source), sampler.num_samples
    if sampler.replacement:
        sizes = [32] * (wanted // 32) + [wanted % 32]
        draws = [
            torch.randint(high=size, size=(part,), dtype=torch.int64, generator=generator) for part in sizes
        ]
        return TensorOrder(torch.cat(draws))
    draws = [torch.randperm(size, generator=generator) for _ in range(wanted // size)]
    rest = wanted % size
    if rest:
        draws.append(torch.randperm(size, generator=generator)[:rest])
        return TensorOrder(torch.cat(draws))
    drawn = draws[0] if len(draws) == 1 else torch.cat(draws)
    return TensorOrder(drawn, finish=lambda: torch.randperm(size, generator=generator))


def _draw_subset(sampler: Any, generator: torch.Generator | None) -> Sequence[int]:
    indices = sampler.indices
    return [indices[i] for i in torch.randperm(len(indices), generator=generator).tolist()]


def _draw_weighted(sampler: Any, generator: torch.Generator | None) -> Sequence[int]:
    weights, wanted = sampler.weights, sampler.num_samples
    return TensorOrder(torch.multinomial(weights, wanted, sampler.replacement, generator=generator))


_DRAWS: dict[Any, Any] = {
    SequentialSampler.__iter__: _draw_sequential,
    RandomSampler.__iter__: _draw_random,
    SubsetRandomSampler.__iter__: _draw_subset,
    WeightedRandomSampler.__iter__: _draw_weighted,
}


def register_draw(sampler_class: type[Any], draw: Any) -> None:
    """Teach `draw_order` a sampler class: ``draw(sampler, generator)`` returns the order that iterating the
    sampler would give if it drew from ``generator``.
    """
    _DRAWS[sampler_class.__iter__] = draw
