"""Batches of as many rows as the micro-batches of a step have together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from accel_state.errors import ConfigError

_KEPT = (
    "collate_fn", "generator", "in_order", "multiprocessing_context", "num_workers", "persistent_workers",
    "pin_memory", "pin_memory_device", "prefetch_factor", "timeout", "worker_init_fn",
)  # fmt: skip


def with_larger_batches(loader: DataLoader[Any], factor: int) -> DataLoader[Any]:
    """Return a loader like ``loader`` whose batches have ``factor`` times as many rows.

    Raises:
        ConfigError: If the loader has no batch size.
    """
    if factor == 1:
        return loader
    size = batch_size_of(loader)
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    sampler = None if isinstance(loader.dataset, IterableDataset) else loader.sampler
    return DataLoader(
        loader.dataset, batch_size=size * factor, sampler=sampler, drop_last=loader.drop_last, **kept
    )


def batch_size_of(loader: Any) -> int:
    """Return the rows of a batch.

    Raises:
        ConfigError: If the loader does not say it.
    """
    if loader.batch_size is None:
        raise ConfigError(
            "A loader with a `batch_sampler` of its own, or without batches, does not tell its batch size, which "
            "Megatron-LM takes as that of a micro-batch. Give the `DataLoader` a `batch_size`."
        )
    return int(loader.batch_size)


def micro_batches(batch: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """Return the rows of a batch in ``number`` parts of almost the same size, or in fewer where it has fewer rows."""
    rows = [len(value) for value in batch.values() if isinstance(value, torch.Tensor) and value.ndim]
    if not rows:
        return [dict(batch)]
    number = min(number, rows[0])
    parts = {
        name: value.tensor_split(number)
        if isinstance(value, torch.Tensor) and value.ndim and len(value) == rows[0]
        else [value] * number
        for name, value in batch.items()
    }
    return [{name: values[place] for name, values in parts.items()} for place in range(number)]


def iterators_for(parts: list[dict[str, Any]], *, num_models: int) -> list[Iterator[dict[str, Any]]]:
    """Return an iterator over the micro-batches for each part of the model."""
    return [iter(parts) for _ in range(num_models)]
