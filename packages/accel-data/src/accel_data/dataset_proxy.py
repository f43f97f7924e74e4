"""Streams that wrap the data set of a user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from accel_data.delegation import Delegating


class DatasetProxy(Delegating, IterableDataset[Any]):
    """Wrap ``dataset``; attributes that the proxy lacks are read from it and set on it.

    In a worker `get_worker_info().dataset` is the proxy, and a `worker_init_fn` may set the data set's attributes
    through it. What a subclass assigns before it calls this `__init__` are its own attributes.
    """

    _wrapped_in = "dataset"
    dataset: Any

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def __setattr__(self, name: str, value: Any) -> None:
        is_wrapping = "dataset" in self.__dict__
        is_own = not is_wrapping or name in self.__dict__ or not hasattr(self.dataset, name)
        object.__setattr__(self if is_own else self.dataset, name, value)
