"""Streams that stand for the data set of a user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset


class StandIn(IterableDataset[Any]):
    """Stands for ``dataset``: attributes that it has not itself are those of the data set, to read and to set.

    In a worker it is what `get_worker_info` gives to a `worker_init_fn` that tells the data set its part. What a
    subclass assigns before it calls this `__init__` is its own.
    """

    dataset: Any

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(
                f"`{type(self).__name__}` object has no attribute `{name}`.", name=name, obj=self
            )
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        has_dataset = "dataset" in self.__dict__
        own = not has_dataset or name in self.__dict__ or not hasattr(self.dataset, name)
        object.__setattr__(self if own else self.dataset, name, value)
