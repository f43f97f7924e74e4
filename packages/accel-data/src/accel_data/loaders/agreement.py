"""The randomness that the ranks share before an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from accel_data.loaders.epochs import get_sampler
from accel_data.loaders.sharding import index_shard, is_iterable
from accel_data.loaders.streams import stream_of
from accel_data.samplers.seedable import SeedableRandomSampler
from accel_ops.objects import broadcast_object_list
from accel_ops.random import synchronize_rng_states
from accel_state.enums import RNGType


def agree_on_order(
    sampler: Any, generator: torch.Generator | None, *, rng_types: Sequence[str | RNGType], is_shared: bool
) -> None:
    """Give every rank the main process's randomness. Every rank must call it; it blocks until all do.

    Args:
        sampler: The sampler of the loader.
        generator: What the order is drawn from.
        rng_types: Further generators to synchronise. That of the order always is if the ranks share it.
        is_shared: Whether other ranks read by the same order, other parts of it or the same.
    """
    others = [kind for kind in rng_types if RNGType(kind) != RNGType.GENERATOR]
    if others:
        synchronize_rng_states(others)
    if not is_shared:
        return
    if isinstance(sampler, SeedableRandomSampler):
        if not sampler.is_seed_given:
            seed = [sampler.initial_seed]
            broadcast_object_list(seed)
            sampler.initial_seed, sampler.is_seed_given = seed[0], True
    elif generator is not None:
        synchronize_rng_states([RNGType.GENERATOR], generator)


def order_generator(loader: DataLoader[Any]) -> torch.Generator | None:
    """Return the generator that the order of ``loader`` is drawn from, None if its sampler or stream has none."""
    shard = index_shard(loader)
    source = stream_of(loader) if is_iterable(loader) else get_sampler(loader) if shard is None else shard
    generator = getattr(source, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None
