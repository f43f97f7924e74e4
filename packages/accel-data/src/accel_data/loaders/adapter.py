"""A loader around a loader: it is one, of the same class, and everything it does not know is the inner
one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from torch.utils.data import DataLoader

from accel_data.stateful import stateful_loader_class


class DataLoaderAdapter(DataLoader[Any]):
    """Wrap a `DataLoader`, or a `StatefulDataLoader` of torchdata, built from the same arguments.

    An instance is of the class of the inner loader as well, so `isinstance` keeps its answers. Attributes
    that are the inner loader's are read from it and written to it.

    Args:
        dataset: As for `DataLoader`.
        use_stateful_dataloader: Build a `StatefulDataLoader`.
        batch_sampler: As for `DataLoader`.
        **kwargs: As for `DataLoader`.
    """

    base_dataloader: DataLoader[Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if kwargs.get("use_stateful_dataloader"):
            mixed: type[Self] = class_around(cls, stateful_loader_class())
            return super().__new__(mixed)
        return super().__new__(cls)

    def __init__(
        self,
        dataset: Any,
        use_stateful_dataloader: bool = False,
        batch_sampler: Iterable[list[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        loader_class = stateful_loader_class() if use_stateful_dataloader else DataLoader
        self._adopt(loader_class(dataset, batch_sampler=batch_sampler, **kwargs))

    def _adopt(self, base: DataLoader[Any]) -> None:
        """Become an adapter of ``base``."""
        self.__dict__["base_dataloader"] = base
        self.__dict__["use_stateful_dataloader"] = hasattr(base, "load_state_dict")

    @classmethod
    def _around(cls, base: DataLoader[Any]) -> Self:
        """Return an adapter of ``base`` that has not been set up any further."""
        adapter: Self = object.__new__(class_around(cls, type(base)))
        adapter._adopt(base)
        return adapter

    def __getattr__(self, name: str) -> Any:
        base = self.__dict__.get("base_dataloader")
        if base is None:
            raise AttributeError(
                f"`{type(self).__name__}` object has no attribute `{name}`.", name=name, obj=self
            )
        return getattr(base, name)

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
        state = (
            self.__dict__ | {"base_dataloader": _without_workers(self.base_dataloader)} | self._not_carried()
        )
        return _restore, (type(self)._ours, state)

    def _not_carried(self) -> dict[str, Any]:
        """Return attributes that cannot be pickled, with the values that a copy begins with."""
        return {}

    #: The class of this package that an instance is of, whatever it was mixed with.
    _ours: type[DataLoaderAdapter]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("_ours") is None:
            cls._ours = cls

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner loader, where it has one."""
        state: dict[str, Any] = self.base_dataloader.state_dict()  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.base_dataloader.load_state_dict(state_dict)  # type: ignore[attr-defined]

    def adjust_state_dict_for_prefetch(self) -> None:
        """Do nothing: a state is taken at the last batch that was handed out, never at one that was fetched
        ahead.
        """


DataLoaderAdapter._ours = DataLoaderAdapter


_mixed: dict[tuple[Any, Any], type[Any]] = {}


def class_around(ours: type[DataLoaderAdapter], theirs: type[DataLoader[Any]]) -> type[Any]:
    """Return a class that is ``ours`` first and ``theirs`` as well."""
    if issubclass(ours, theirs):
        return ours
    mixed = _mixed.get((ours, theirs))
    if mixed is None:
        own = {"__module__": ours.__module__, "__doc__": ours.__doc__, "_ours": ours}
        mixed = _mixed[ours, theirs] = type(ours.__name__, (ours, theirs), own)
    return mixed


def _without_workers(base: DataLoader[Any]) -> DataLoader[Any]:
    from accel_data.loaders.cloning import clone_loader

    return clone_loader(base)


def _restore(ours: type[DataLoaderAdapter], state: dict[str, Any]) -> DataLoaderAdapter:
    adapter = ours._around(state["base_dataloader"])
    adapter.__dict__.update(state)
    return adapter
