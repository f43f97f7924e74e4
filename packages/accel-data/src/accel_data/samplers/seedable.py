"""A random sampler whose order depends only on a seed and the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import RandomSampler

from accel_ops.objects import broadcast_object_list


class SeedableRandomSampler(RandomSampler):
    """Shuffle like `RandomSampler`, seeded with ``seed + epoch``.

    Args:
        *args: As for `RandomSampler`.
        data_seed: The seed. None: torch's current seed.
        **kwargs: As for `RandomSampler`. Without a ``generator`` it creates one.

    Iterating to the end moves on to the next epoch; `set_epoch` chooses one.
    """

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.generator is None:
            self.generator = torch.Generator()
        self.is_seed_set = data_seed is not None
        self.initial_seed = torch.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(self.epoch + self.initial_seed)
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next order."""
        self.epoch = epoch

    def share_seed(self) -> None:
        """Use the seed of rank 0 unless a seed was passed. Every rank must call it; it blocks until all do."""
        if not self.is_seed_set:
            (self.initial_seed,) = broadcast_object_list([self.initial_seed])
            self.is_seed_set = True

    def load_seed(self, seed: int) -> None:
        """Set the seed of a saved run."""
        self.initial_seed, self.is_seed_set = seed, True
