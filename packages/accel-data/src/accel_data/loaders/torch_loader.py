"""An ordinary loader of torch: its data, copies of it, and adapters around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from accel_data.delegation import Delegating
from accel_data.iterable_shard import IterableDatasetShard
from accel_data.loaders.state import Source
from accel_data.loaders.stateful import stateful_loader_class
from accel_data.mesh import DataRanks
from accel_data.samplers.batch_shard import BatchSamplerShard, IndexSamplerShard
from accel_data.step import StepShape
from accel_state.errors import ConfigError
from accel_state.gradient_state import GradientState, Reading, current_gradient

Loader = TypeVar("Loader", bound=DataLoader[Any])


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


def from_attributes(loader_class: type[Loader], attributes: Mapping[str, Any]) -> Loader:
    """Return a loader with these attributes.

    Its constructor is not called, since a subclass may have another signature.
    """
    loader = object.__new__(loader_class)
    loader.__dict__.update(attributes)  # `DataLoader.__setattr__` refuses some, such as `batch_size`
    return loader


def clone_loader(loader: DataLoader[Any], **fields: Any) -> DataLoader[Any]:
    """Return a loader of the same class and with the same settings, except for ``fields``. Workers are not shared."""
    return from_attributes(type(loader), {**loader.__dict__, **fields, "_iterator": None})


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` reads a stream, without indices."""
    return bool(loader._dataset_kind == 1)  # `_DatasetKind.Iterable`; torch has no public name


def batches_field(loader: DataLoader[Any]) -> str | None:
    """Return the field of ``loader`` that yields lists of indices, None if there is none."""
    if loader.batch_sampler is not None:
        return "batch_sampler"
    # A batch sampler passed as `sampler`, so that the data set returns full batches.
    return "sampler" if isinstance(loader.sampler, BatchSampler) else None


def innermost_batch_sampler(batch_sampler: Any) -> Any:
    """Return the user's batch sampler, without ours around it."""
    while (inner := getattr(batch_sampler, "batch_sampler", None)) is not None:
        batch_sampler = inner
    return batch_sampler


def get_sampler(dataloader: DataLoader[Any]) -> Any:
    """Return the sampler that yields single indices, under all batch samplers; None if there is none."""
    if dataloader.batch_sampler is None and is_iterable(dataloader):
        return None
    field = batches_field(dataloader)
    if field is not None:
        return getattr(innermost_batch_sampler(getattr(dataloader, field)), "sampler", None)
    inner = innermost_batch_sampler(dataloader.sampler)
    return inner if inner is dataloader.sampler else getattr(inner, "sampler", None)


def index_shard(loader: DataLoader[Any]) -> BatchSamplerShard | None:
    """Return the shard that gives ``loader`` its indices, None if it has none."""
    for source in (loader.batch_sampler, loader.sampler):
        if isinstance(source, BatchSamplerShard):
            return source
        if isinstance(source, IndexSamplerShard):
            return source.batch_sampler
    return None


def shard_indices(
    loader: DataLoader[Any], ranks: DataRanks, *, split_batches: bool, even_batches: bool
) -> DataLoader[Any]:
    """Return ``loader`` with one rank's part of its indices; a sharded loader is returned unchanged.

    Raises:
        ConfigError: If its sampler also shards them.
    """
    if index_shard(loader) is not None:
        return loader
    sampler, field = get_sampler(loader), batches_field(loader)
    if ranks.num_ranks > 1 and isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise ConfigError(
            f"The sampler is a `DistributedSampler` that yields one part of {sampler.num_replicas} already; "
            f"dividing that part among {ranks.num_ranks} processes again would lose samples. Use `shuffle=True` "
            "or a plain sampler."
        )
    if field is None:
        return clone_loader(
            loader,
            sampler=IndexSamplerShard(
                loader.sampler,
                num_processes=ranks.num_ranks,
                process_index=ranks.rank,
                even_batches=even_batches,
            ),
        )
    shard = BatchSamplerShard(
        getattr(loader, field), ranks.num_ranks, ranks.rank, split_batches, even_batches
    )
    return clone_loader(loader, **{field: shard})


def source_of(loader: DataLoader[Any]) -> Source:
    """Return the source of ``loader``, which has been sharded unless it reads a stream."""
    shard: Any = loader.dataset if isinstance(loader.dataset, IterableDatasetShard) else None
    dataset = loader.dataset if shard is None else shard.dataset
    indices = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return Source(
        loader,
        is_iterable(loader),
        dataset,
        has_state=hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict"),
        is_stateful=hasattr(loader, "load_state_dict"),
        index_shard=index_shard(loader),
        stream_shard=shard,
        batch_sampler=innermost_batch_sampler(indices),
    )


class DataLoaderStateMixin:
    """A loader that is registered with `GradientState` between `begin` and `end`.

    Attributes:
        end_of_dataloader: Whether the current batch is this rank's last.
        ends_some_rank: Whether it is the last of any rank; None if unknown.
        remainder: Samples in the last global batch if it is not full; 0 if it is full; -1 while that is
            unknown.
        will_pad: Whether the last step is known to be padded.
        gradient_state: The state of accumulation, with the loader that is being read.
        step_shape: Rows of every rank in the current step, and how many are not padding; None if unknown.
    """

    gradient_state: GradientState = current_gradient()
    end_of_dataloader: bool = False
    ends_some_rank: bool | None = False
    remainder: int = -1
    step_shape: StepShape | None = None
    will_pad: bool = False

    @property
    def rows_of_full_batch(self) -> int | None:
        """Rows of this rank's batch in a full step; None if they vary or are unknown."""
        return None

    @property
    def counts_batches(self) -> bool:
        """Whether the shape counts batches instead of rows."""
        return False

    @property
    def is_under_way(self) -> bool:
        """Whether a pass has started and has neither ended nor been left."""
        return any(loader is self for loader in self.gradient_state.dataloader_references)

    def reset(self) -> None:
        """Reset the attributes that describe the pass."""
        self.end_of_dataloader = False
        self.ends_some_rank = False
        self.remainder = -1
        self.step_shape = None
        self.will_pad = False

    def begin(self) -> Reading:
        """Start a pass: this loader becomes the active one."""
        self.reset()
        return self.gradient_state._add_dataloader(self)

    def end(self) -> None:
        """End a pass, complete or not: the loader around this one becomes active again."""
        self.gradient_state._remove_dataloader(self)


class DataLoaderAdapter(Delegating, DataLoader[Any]):
    """Wrap a `DataLoader`, or a `StatefulDataLoader` of torchdata, built from the same arguments.

    An instance is of the class of the inner loader as well, so `isinstance` keeps its answers. Attributes
    of the inner loader are read from it and set on it.

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
        """Initialize an adapter of ``base``. Subclasses set their attributes first, even if ``base`` has them."""
        self.__dict__.update(self._fields_of(base))

    def _fields_of(self, base: DataLoader[Any]) -> dict[str, Any]:
        """Return the attributes that follow from the inner loader."""
        return {"use_stateful_dataloader": hasattr(base, "load_state_dict"), "base_dataloader": base}

    def __setattr__(self, name: str, value: Any) -> None:
        base = self.__dict__.get("base_dataloader")
        if base is not None and name not in self.__dict__ and name in base.__dict__:
            setattr(base, name, value)
        else:
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.base_dataloader)

    def __len__(self) -> int:
        return self._base_length()

    def _base_length(self) -> int:
        try:
            return len(self.base_dataloader)
        except TypeError as error:
            if is_iterable(self.base_dataloader):
                raise TypeError(
                    f"A loader over a stream has no length: {error}. Give the data set a `__len__` that "
                    "returns its number of samples, or count steps in the loop."
                ) from None
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (unmixed_class(type(self)), self._copied_attributes())

    def _copied_attributes(self) -> dict[str, Any]:
        """Return the attributes of a copy, which shares no workers with this loader."""
        return {**self.__dict__, **self._fields_of(clone_loader(self.base_dataloader))}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner loader, if it has one."""
        state: dict[str, Any] = self.base_dataloader.state_dict()  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.base_dataloader.load_state_dict(state_dict)  # type: ignore[attr-defined]

    def adjust_state_dict_for_prefetch(self) -> None:
        """Do nothing: a state always describes the last batch that was yielded, never a prefetched one."""


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
