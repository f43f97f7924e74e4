"""The samplers of a loader, and their epoch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from accel_data.loaders.cloning import set_fields


def get_sampler(dataloader: DataLoader[Any]) -> Any:
    """Return the sampler that yields single indices, under all batch samplers; None if there is none."""
    if dataloader.batch_sampler is None and dataloader._dataset_kind == 1:
        return None
    source = dataloader.sampler if dataloader.batch_sampler is None else dataloader.batch_sampler
    inner = innermost_batch_sampler(source)
    # Without batches the source is the sampler itself, unless it was put there to make lists of indices.
    is_sampler = inner is source and dataloader.batch_sampler is None and not isinstance(source, BatchSampler)
    return source if is_sampler else getattr(inner, "sampler", None)


def set_sampler(dataloader: DataLoader[Any], sampler: Any) -> None:
    """Make ``sampler`` the one that yields single indices, under all batch samplers."""
    if isinstance(dataloader.sampler, BatchSampler):
        innermost_batch_sampler(dataloader.sampler).sampler = sampler
        return
    set_fields(dataloader, sampler=sampler)
    if dataloader.batch_sampler is not None:
        innermost_batch_sampler(dataloader.batch_sampler).sampler = sampler


def batches_field(loader: DataLoader[Any]) -> str | None:
    """Return the field of ``loader`` that yields lists of indices, None if there is none."""
    if loader.batch_sampler is not None:
        return "batch_sampler"
    # Put there to read whole batches from the data set.
    return "sampler" if isinstance(loader.sampler, BatchSampler) else None


def innermost_batch_sampler(batch_sampler: Any) -> Any:
    """Return the user's batch sampler, without ours around it."""
    while (inner := getattr(batch_sampler, "batch_sampler", None)) is not None:
        batch_sampler = inner
    return batch_sampler


def set_epoch(dataloader: DataLoader[Any], epoch: int) -> None:
    """Call ``set_epoch`` of the batch sampler, the sampler and the data set that have one, once each."""
    told: list[Any] = []
    sources = (dataloader.batch_sampler, dataloader.sampler, get_sampler(dataloader), dataloader.dataset)
    for source in sources:
        inner = innermost_batch_sampler(source)
        if hasattr(inner, "set_epoch") and not any(inner is one for one in told):
            inner.set_epoch(epoch)
            told.append(inner)
