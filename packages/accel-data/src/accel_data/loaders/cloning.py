"""Loaders made from loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from accel_data.stateful import stateful_loader_class
from accel_state.errors import ConfigError

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
    """Refuse what is not a loader of torch.

    Raises:
        ConfigError: If it is not one.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"`dataloader` must be a `torch.utils.data.DataLoader`, got an object of type `{type(loader).__name__}`. "
            "Build one around it."
        )


def check_keeps_order(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose workers may return batches in another order than they were asked for.

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


@contextmanager
def replaced_fields(loader: DataLoader[Any], **fields: Any) -> Iterator[None]:
    """Set fields of a loader as `set_fields` does, and give them their old values after the body."""
    before = {name: loader.__dict__[name] for name in fields}
    set_fields(loader, **fields)
    try:
        yield
    finally:
        set_fields(loader, **before)


_mixed: dict[tuple[Any, Any], type[Any]] = {}


def mixed_class(ours: type[Any], theirs: type[DataLoader[Any]]) -> type[Any]:
    """Return a class that is ``ours`` first and ``theirs`` as well, so that `isinstance` keeps its answers."""
    if issubclass(ours, theirs):
        return ours
    mixed = _mixed.get((ours, theirs))
    if mixed is None:
        own = {"__module__": ours.__module__, "__doc__": ours.__doc__}
        mixed = _mixed[ours, theirs] = type(ours.__name__, (ours, theirs), own)
    return mixed


def unmixed_class(mixed: type[Any]) -> type[Any]:
    """Return the ``ours`` that `mixed_class` made ``mixed`` of, or ``mixed`` if it is a plain class."""
    return mixed.__bases__[0] if mixed in _mixed.values() else mixed


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
