"""Ordinary loaders of torch and torchdata: what is in them, and copies with other fields."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, DataLoader

from accel_data.iterable_shard import IterableDatasetShard
from accel_data.samplers.batch_shard import BatchSamplerShard, IndexSamplerShard
from accel_state.errors import ConfigError, NotAvailableError

Loader = TypeVar("Loader", bound=DataLoader[Any])

_ALWAYS = (
    "dataset",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def check_loader(loader: object) -> None:
    """Raise for anything but a loader of torch.

    Raises:
        ConfigError: If it is not one.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"`dataloader` must be a `torch.utils.data.DataLoader`, got an object of type `{type(loader).__name__}`. "
            "Build one around it."
        )


def check_keeps_order(loader: DataLoader[Any]) -> None:
    """Raise for a loader whose workers may return batches in another order than they were asked for.

    Raises:
        ConfigError: If it is one.
    """
    if loader.num_workers > 0 and not getattr(loader, "in_order", True):
        raise ConfigError(
            "`in_order=False` lets the workers return batches in any order, so neither the position in the data "
            "nor the padding of the last batch could be known. Build the `DataLoader` with `in_order=True`."
        )


def from_attributes(loader_class: type[Loader], attributes: Mapping[str, Any]) -> Loader:
    """Return a loader with these attributes.

    The class is not asked to build it, since the signature of a subclass is its own.
    """
    loader = object.__new__(loader_class)
    loader.__dict__.update(attributes)
    return loader


def clone_loader(loader: DataLoader[Any], **fields: Any) -> DataLoader[Any]:
    """Return a loader of the same class and with the same settings, except for ``fields``. Workers are not shared."""
    return from_attributes(type(loader), {**loader.__dict__, **fields, "_iterator": None})


def set_fields(loader: DataLoader[Any], **fields: Any) -> None:
    """Set fields of a loader, those too that torch refuses to set after its constructor."""
    loader.__dict__.update(fields)


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` reads a stream, without indices."""
    return bool(loader._dataset_kind == 1)


def index_shard(loader: DataLoader[Any]) -> BatchSamplerShard | None:
    """Return the shard that gives ``loader`` its indices, None if it has none."""
    for source in (loader.batch_sampler, loader.sampler):
        if isinstance(source, BatchSamplerShard):
            return source
        if isinstance(source, IndexSamplerShard):
            return source.batch_sampler
    return None


def stream_of(loader: DataLoader[Any]) -> Any:
    """Return the user's data set, without our shard around it."""
    dataset: Any = loader.dataset
    return dataset.dataset if isinstance(dataset, IterableDatasetShard) else dataset


def order_generator(loader: DataLoader[Any]) -> torch.Generator | None:
    """Return the generator that the order of ``loader`` is drawn from, None if its sampler or stream has none."""
    shard = index_shard(loader)
    source = stream_of(loader) if is_iterable(loader) else get_sampler(loader) if shard is None else shard
    generator = getattr(source, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


def keep_generator(loader: DataLoader[Any]) -> None:
    """Give samplers without a generator one of their own, as they had when the state that is loaded was saved.

    Release 0.2 lent them one, and torch draws another order from its default generator in the same state.
    """
    shard = index_shard(loader)
    for sampler in () if shard is None else shard.samplers:
        if getattr(sampler, "generator", loader) is None:
            sampler.generator = torch.Generator()


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
    called: list[Any] = []
    sources = (dataloader.batch_sampler, dataloader.sampler, get_sampler(dataloader), dataloader.dataset)
    for source in sources:
        inner = innermost_batch_sampler(source)
        if hasattr(inner, "set_epoch") and not any(inner is one for one in called):
            inner.set_epoch(epoch)
            called.append(inner)


def constructor_arguments(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments that build a plain loader like ``loader``."""
    arguments = {name: getattr(loader, name) for name in _ALWAYS}
    if loader.num_workers == 0:
        arguments["prefetch_factor"] = None
    if loader.batch_sampler is not None and loader.batch_size is None:
        return arguments | {"batch_sampler": loader.batch_sampler}
    arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    return arguments if loader._dataset_kind == 1 else arguments | {"sampler": loader.sampler}


def to_stateful(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return ``loader`` as a `StatefulDataLoader` of torchdata.

    Raises:
        NotAvailableError: If torchdata is missing.
        ConfigError: If the loader is of a class of its own, which would be lost.
    """
    stateful = stateful_loader_class()
    if isinstance(loader, stateful):
        return loader
    if type(loader) is not DataLoader:
        raise ConfigError(
            f"`use_stateful_dataloader` cannot keep the class `{type(loader).__name__}` of the data loader. "
            "Derive it from `torchdata.stateful_dataloader.StatefulDataLoader`, or leave the setting out."
        )
    return stateful(**constructor_arguments(loader))


def is_torchdata_stateful_dataloader_available() -> bool:
    """Whether `torchdata.stateful_dataloader` can be imported."""
    if importlib.util.find_spec("torchdata") is None:
        return False
    return importlib.util.find_spec("torchdata.stateful_dataloader") is not None


def stateful_loader_class() -> type[DataLoader[Any]]:
    """Return torchdata's `StatefulDataLoader`.

    Raises:
        NotAvailableError: If torchdata is missing or too old.
    """
    if not is_torchdata_stateful_dataloader_available():
        raise NotAvailableError(
            "`use_stateful_dataloader` needs the package `torchdata` (0.8 or newer), which is not installed. "
            "Run `pip install torchdata`."
        )
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader_class: type[DataLoader[Any]] = StatefulDataLoader
    return loader_class


def is_stateful(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` is a `StatefulDataLoader`, or one with a state of its own."""
    return hasattr(loader, "load_state_dict")


def has_position(state: Any) -> bool:
    """Whether the state of a `StatefulDataLoader` holds the position in a stream, not just a number of
    batches.

    Without it torchdata reads the stream from its beginning, and counts the batches read again a second time in
    its next state (`next(self)` in `load_state_dict` of both iterators, torchdata 0.11.0). Our own replay does not.
    """
    if not isinstance(state, dict):
        return False
    if state.get("dataset_state") is not None or state.get("dataset_iter_state") is not None:
        return True
    return any(has_position(value) for value in state.values())
