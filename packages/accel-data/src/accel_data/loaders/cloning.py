"""Loaders made from loaders."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from accel_data.stateful import stateful_loader_class
from accel_state.errors import ConfigError

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
    """Refuse what is no loader of torch.

    Raises:
        ConfigError: If it is none.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"`dataloader` must be a `torch.utils.data.DataLoader`, got an object of type `{type(loader).__name__}`. "
            "Build one around it."
        )


def check_keeps_order(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose workers may hand out batches in another order than they were asked for.

    Raises:
        ConfigError: If it is one.
    """
    if loader.num_workers > 0 and not getattr(loader, "in_order", True):
        raise ConfigError(
            "`in_order=False` lets the workers hand out batches in any order, so neither the position in the data "
            "nor the rows that complete the last batch could be known. Build the `DataLoader` with `in_order=True`."
        )


def clone_loader(loader: DataLoader[Any], **fields: Any) -> DataLoader[Any]:
    """Return a loader of the same class and with the same settings, except for ``fields``.

    The class is not asked to build it, since the signature of a subclass is its own. Workers are not shared.
    """
    clone: DataLoader[Any] = object.__new__(type(loader))
    clone.__dict__.update(loader.__dict__)
    clone.__dict__.update(fields, _iterator=None)
    return clone


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
