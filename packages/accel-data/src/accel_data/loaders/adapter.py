"""A loader that wraps another one, of the same class, and offers its attributes too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from torch.utils.data import DataLoader

from accel_data.delegation import Delegating
from accel_data.loaders.torch_loader import (
    clone_loader,
    from_attributes,
    is_stateful,
    stateful_loader_class,
)


class DataLoaderAdapter(Delegating, DataLoader[Any]):
    """Wrap a `DataLoader`, or a `StatefulDataLoader` of torchdata, built from the same arguments.

    An instance is of the class of the inner loader as well, so `isinstance` keeps its answers. Attributes
    that are the inner loader's are read from it and set on it.

    Args:
        dataset: As for `DataLoader`.
        use_stateful_dataloader: Build a `StatefulDataLoader`.
        batch_sampler: As for `DataLoader`.
        **kwargs: As for `DataLoader`.
    """

    _wrapped_in = "base_dataloader"
    base_dataloader: DataLoader[Any]
    use_stateful_dataloader: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if kwargs.get("use_stateful_dataloader"):
            mixed: type[Self] = mixed_class(cls, stateful_loader_class())
            return super().__new__(mixed)
        return super().__new__(cls)

    def __init__(
        self,
        dataset: Any,
        use_stateful_dataloader: bool = False,
        batch_sampler: Iterable[list[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._wrap(build_loader(dataset, use_stateful_dataloader, batch_sampler=batch_sampler, **kwargs))

    @classmethod
    def around(cls, base: DataLoader[Any], **options: Any) -> Self:
        """Return an adapter of an existing loader, with the options of `_wrap`."""
        adapter: Self = object.__new__(mixed_class(cls, type(base)))
        adapter._wrap(base, **options)
        return adapter

    def _wrap(self, base: DataLoader[Any]) -> None:
        """Initialize an adapter of ``base``. Subclasses set their own attributes first, whatever ``base`` has."""
        self.use_stateful_dataloader = is_stateful(base)
        self.base_dataloader = base

    def __setattr__(self, name: str, value: Any) -> None:
        base = self.__dict__.get("base_dataloader")
        if base is not None and name not in self.__dict__ and name in base.__dict__:
            setattr(base, name, value)
        else:
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.base_dataloader)

    def __len__(self) -> int:
        return len(self.base_dataloader)

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = self.__dict__ | {"base_dataloader": clone_loader(self.base_dataloader)}
        return _restore, (unmixed_class(type(self)), attributes | self._not_pickled())

    def _not_pickled(self) -> dict[str, Any]:
        """Return attributes that cannot be pickled, with the values that a copy begins with."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner loader, where it has one."""
        state: dict[str, Any] = self.base_dataloader.state_dict()  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.base_dataloader.load_state_dict(state_dict)  # type: ignore[attr-defined]

    def adjust_state_dict_for_prefetch(self) -> None:
        """Do nothing: a state is always that of the last batch that was yielded, not of one that was prefetched."""


def build_loader(dataset: Any, use_stateful_dataloader: bool, **kwargs: Any) -> DataLoader[Any]:
    """Build the inner loader."""
    loader_class = stateful_loader_class() if use_stateful_dataloader else DataLoader
    return loader_class(dataset, **kwargs)


def _restore(ours: type[DataLoaderAdapter], attributes: dict[str, Any]) -> DataLoaderAdapter:
    adapter: DataLoaderAdapter = from_attributes(
        mixed_class(ours, type(attributes["base_dataloader"])), attributes
    )
    return adapter


_mixed: dict[tuple[Any, Any], type[Any]] = {}


def mixed_class(ours: type[Any], theirs: type[DataLoader[Any]]) -> type[Any]:
    """Return a class that is ``ours`` first and ``theirs`` as well, so that `isinstance` keeps its answers."""
    if issubclass(ours, theirs):
        return ours
    mixed = _mixed.get((ours, theirs))
    if mixed is None:
        names = {"__module__": ours.__module__, "__doc__": ours.__doc__}
        mixed = _mixed[ours, theirs] = type(ours.__name__, (ours, theirs), names)
    return mixed


def unmixed_class(mixed: type[Any]) -> type[Any]:
    """Return the ``ours`` that `mixed_class` made ``mixed`` of, or ``mixed`` if it is a plain class."""
    return mixed.__bases__[0] if mixed in _mixed.values() else mixed
