"""The optional stateful loader of torchdata."""

from __future__ import annotations

import importlib.util
from typing import Any

from torch.utils.data import DataLoader

from accel_state.errors import NotAvailableError


def is_torchdata_stateful_dataloader_available() -> bool:
    """Tell whether `torchdata.stateful_dataloader` can be imported."""
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


def has_position(state: Any) -> bool:
    """Tell whether the state of a `StatefulDataLoader` holds the position in a stream, not just a number of
    batches.

    Without it torchdata reads the stream from its beginning, and counts the batches read again a second time in
    its next state (`next(self)` in `load_state_dict` of both iterators, torchdata 0.11.0). Our own replay does not.
    """
    if not isinstance(state, dict):
        return False
    if state.get("dataset_state") is not None or state.get("dataset_iter_state") is not None:
        return True
    return any(has_position(value) for value in state.values())
