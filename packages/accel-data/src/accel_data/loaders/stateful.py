"""torchdata's `StatefulDataLoader`."""

from __future__ import annotations

import importlib.util
from typing import Any

from torch.utils.data import DataLoader

from accel_state.errors import ConfigError, NotAvailableError

_SETTINGS = (
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


def to_stateful(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return ``loader`` as a `StatefulDataLoader`.

    Raises:
        NotAvailableError: If torchdata is missing.
        ConfigError: If the loader is of a subclass, which would be lost.
    """
    stateful = stateful_loader_class()
    if isinstance(loader, stateful):
        return loader
    if type(loader) is not DataLoader:
        raise ConfigError(
            f"`use_stateful_dataloader` cannot keep the class `{type(loader).__name__}` of the data loader. "
            "Derive it from `torchdata.stateful_dataloader.StatefulDataLoader`, or leave the setting out."
        )
    settings = {name: getattr(loader, name) for name in _SETTINGS}
    if loader.num_workers == 0:
        settings["prefetch_factor"] = None
    if loader.batch_sampler is not None and loader.batch_size is None:
        return stateful(**settings, batch_sampler=loader.batch_sampler)
    if loader._dataset_kind == 0:  # `_DatasetKind.Map`; torch has no public name
        settings["sampler"] = loader.sampler
    return stateful(**settings, batch_size=loader.batch_size, drop_last=loader.drop_last)


def has_position(state: Any) -> bool:
    """Whether the state of a `StatefulDataLoader` has the position in a stream, not just a number of batches.

    Without it torchdata reads the stream from its start, and counts the batches read again a second time in
    its next state (`next(self)` in `load_state_dict` of both iterators, torchdata 0.11.0). Our replay does not.
    """
    if not isinstance(state, dict):
        return False
    if state.get("dataset_state") is not None or state.get("dataset_iter_state") is not None:
        return True
    return any(has_position(value) for value in state.values())
