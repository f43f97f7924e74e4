"""The samplers of torchdata's `StatefulDataLoader`, recognised without importing it."""

from __future__ import annotations

import sys
from typing import Any

import torch

from accel_data.samplers.order import TensorOrder, register_draw


def makes_batches(batch_sampler: Any) -> bool:
    """Tell whether ``batch_sampler`` is torchdata's `BatchSampler`, which works as torch's does."""
    ours = _loaded("BatchSampler")
    return ours is not None and type(batch_sampler).__iter__ is ours.__iter__


def shuffles(sampler: Any) -> bool:
    """Tell whether ``sampler`` is torchdata's `RandomSampler`, which has the attributes of torch's."""
    ours = _loaded("RandomSampler")
    return ours is not None and isinstance(sampler, ours)


def _loaded(name: str) -> Any:
    """Return a class of torchdata's, None if it was not imported: then there is no instance of it."""
    module = sys.modules.get("torchdata.stateful_dataloader.sampler")
    if module is None:
        return None
    register_draw(module.RandomSampler, _draw)
    return getattr(module, name)


def _draw(sampler: Any, generator: torch.Generator | None) -> TensorOrder:
    """Draw what torchdata's `RandomSampler` yields in one epoch: whole permutations, or blocks of 32 numbers."""
    size, wanted = len(sampler.data_source), sampler.num_samples
    if sampler.replacement:
        drawn = [
            torch.randint(size, (32,), dtype=torch.int64, generator=generator)
            for _ in range(-(-wanted // 32))
        ]
    else:
        drawn = [torch.randperm(size, generator=generator) for _ in range(-(-wanted // size))]
    return TensorOrder(torch.cat(drawn)[:wanted])
