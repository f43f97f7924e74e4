"""A random sampler whose order depends only on a seed and the epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import RandomSampler

from accel_data.samplers.order import draw_random, register_draw


class SeedableRandomSampler(RandomSampler):
    """Shuffle like `RandomSampler`, seeded with ``seed + epoch``.

    Args:
        *args: As for `RandomSampler`.
        data_seed: The seed. None: torch's current seed.
        **kwargs: As for `RandomSampler`. Without a ``generator`` it gets one of its own.

    Iterating to the end moves on to the next epoch; `set_epoch` chooses one.
    """

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.generator is None:
            self.generator = torch.Generator()
        self.is_seed_given = data_seed is not None
        self.initial_seed = torch.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def draw(self) -> Sequence[int]:
        """Return the order of the current epoch."""
        self.generator.manual_seed(self.epoch + self.initial_seed)
        return draw_random(self, self.generator)

    def __iter__(self) -> Iterator[int]:
        yield from self.draw()[:]
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = epoch


def _draw(sampler: SeedableRandomSampler, generator: torch.Generator | None) -> Sequence[int]:
    return sampler.draw()


register_draw(SeedableRandomSampler, _draw)
