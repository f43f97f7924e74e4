"""Objects that wrap another one and offer its attributes too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data import IterableDataset


class Delegating:
    """Read attributes that an object lacks from the object that it wraps."""

    #: The attribute that holds the wrapped object.
    _wrapped_in: ClassVar[str]

    def __getattr__(self, name: str) -> Any:
        # Without the wrapped object, as in an instance that is being unpickled, looking for it would not end.
        if name.startswith("__") or self._wrapped_in not in self.__dict__:
            raise AttributeError(
                f"`{type(self).__name__}` object has no attribute `{name}`.", name=name, obj=self
            )
        return getattr(self.__dict__[self._wrapped_in], name)


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
