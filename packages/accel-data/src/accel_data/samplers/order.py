"""The order of an epoch: drawn by the user's sampler, from randomness that is saved so that it can be drawn again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from accel_ops.collectives import broadcast
from accel_ops.objects import gather_object
from accel_state.errors import ConfigError

T = TypeVar("T")

#: Indices of an order given as a list that the ranks compare.
_NUM_COMPARED = 1024
_SEQUENTIAL = "torch.utils.data.sampler.SequentialSampler"
_SEEDABLE = "accel_data.samplers.seedable.SeedableRandomSampler"
_TORCHDATA = "torchdata.stateful_dataloader.sampler"
#: Classes of finite samplers, from whose order a pass may start anywhere. By name: torchdata may be missing.
_FINITE = {
    _SEQUENTIAL,
    _SEEDABLE,
    "torch.utils.data.sampler.RandomSampler",
    "torch.utils.data.sampler.SubsetRandomSampler",
    "torch.utils.data.sampler.WeightedRandomSampler",
    f"{_TORCHDATA}.RandomSampler",
}
_BATCH_SAMPLERS = {"torch.utils.data.sampler.BatchSampler", f"{_TORCHDATA}.BatchSampler"}


def is_torchdata_shuffle(sampler: Any) -> bool:
    """Whether ``sampler`` is torchdata's `RandomSampler`, which has the attributes of torch's."""
    return _iterates_like(sampler) == f"{_TORCHDATA}.RandomSampler"


@dataclass(frozen=True, slots=True)
class OrderSource:
    """A user's batch sampler, and the sampler below it if there is one.

    Args:
        batch_sampler: Yields lists of indices.
    """

    batch_sampler: Any

    @property
    def samplers(self) -> tuple[Any, Any]:
        """The sampler of the batch sampler, None if it has none, and the batch sampler."""
        return getattr(self.batch_sampler, "sampler", None), self.batch_sampler

    @property
    def flat_sampler(self) -> Any:
        """The sampler whose indices torch's or torchdata's `BatchSampler` splits into batches; None for other ones."""
        return self.batch_sampler.sampler if _iterates_like(self.batch_sampler) in _BATCH_SAMPLERS else None

    @property
    def has_order(self) -> bool:
        """Whether the order is a finite sequence, in which a pass can start anywhere."""
        flat = self.flat_sampler
        return isinstance(flat, (list, tuple, range)) or _iterates_like(flat) in _FINITE

    @property
    def iterated(self) -> Any:
        """The sampler that is iterated where there is no such sequence."""
        flat = self.flat_sampler
        return self.batch_sampler if flat is None else flat

    @property
    def generator(self) -> torch.Generator | None:
        """The user's generator for the sampler or the batch sampler, None if there is none."""
        generators = [getattr(one, "generator", None) for one in self.samplers]
        return next((one for one in generators if isinstance(one, torch.Generator)), None)

    @property
    def draws_from_default(self) -> bool:
        """Whether the order may be drawn from torch's default generator."""
        flat = self.flat_sampler
        is_fixed = isinstance(flat, (list, tuple, range)) or _iterates_like(flat) in (_SEQUENTIAL, _SEEDABLE)
        return self.generator is None and not is_fixed

    @property
    def lacks_generator(self) -> bool:
        """Whether it is known that the order is drawn from torch's default generator, since samplers have none."""
        return self.generator is None and any(hasattr(one, "generator") for one in self.samplers)

    @property
    def is_synchronized(self) -> bool:
        """Whether everything that is iterated draws from generators of the user's, which the ranks share."""
        return hasattr(self.iterated, "generator") and all(
            getattr(one, "generator", self) is not None for one in self.samplers
        )


class EpochOrder:
    """The order of one pass.

    Args:
        source: The samplers.
        state: State of the generator to draw the order from. None: the current one.
        is_shared: Whether other ranks read by the same order. Drawing is a collective then.

    Attributes:
        state: The state that the order was drawn from; None before that, and where the order needs none.
    """

    def __init__(
        self, source: OrderSource, state: torch.Tensor | None = None, *, is_shared: bool = False
    ) -> None:
        self.state = state
        self._source = source
        self._is_shared = is_shared
        self._has_begun = False
        #: State of the order's own default generator; None while it draws from that of this process.
        self._own: torch.Tensor | None = None

    def indices(self) -> Sequence[int]:
        """Draw the full order; the source has to have one."""
        sampler = self._source.flat_sampler
        if isinstance(sampler, (list, tuple)) and self._is_shared:
            check_same_order(sampler, sampler[:_NUM_COMPARED])
        if isinstance(sampler, (list, tuple, range)):
            return sampler
        if _iterates_like(sampler) == _SEQUENTIAL:
            return range(len(sampler))
        with self.drawing():
            return list(sampler)

    def isolated(self, items: Iterator[T]) -> Iterator[T]:
        """Yield ``items`` of a sampler, each drawn as in `drawing`."""
        end = object()
        while True:
            with self.drawing():
                item: Any = next(items, end)
            if item is end:
                return
            yield item

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Samplers draw in the body from where this order has drawn so far.

        The default generator of torch moves only if the order is a new one, and then as in plain PyTorch.
        """
        if not self._has_begun:
            self._begin()
        if self._own is None:
            yield
            if self._is_shared and self._source.draws_from_default:
                self._own = torch.get_rng_state()  # what this rank draws elsewhere must not change the order
        else:
            before = torch.get_rng_state()
            torch.set_rng_state(self._own)
            try:
                yield
            finally:
                self._own = torch.get_rng_state()
                torch.set_rng_state(before)

    def _begin(self) -> None:
        self._has_begun = True
        generator, state = self._source.generator, self.state
        if generator is not None:
            if state is None:
                self.state = generator.get_state()
            else:
                generator.set_state(state)
        elif state is not None:
            self._own = state
        elif self._source.draws_from_default:
            here = torch.get_rng_state()
            self.state = broadcast(here.clone()) if self._is_shared else here
            if not torch.equal(self.state, here):
                self._own = self.state


def check_same_order(source: Any, first: Sequence[Any]) -> None:
    """Compare the beginning of the order on all ranks; a collective.

    Args:
        source: The sampler or batch sampler, for the message.
        first: The first indices, or batches of indices, that it has yielded on this rank.

    Raises:
        ConfigError: On every rank, if they differ.
    """
    digest = hashlib.sha256(repr(first).encode()).hexdigest()
    if len(set(gather_object([digest]))) > 1:
        raise ConfigError(
            f"The sampler `{type(source).__name__}` yields different indices on each process, so samples would be read "
            "twice or never. Let it draw from an attribute `generator`, which all processes are given in the same "
            "state, or from a seed of its own and `set_epoch`; or pass `dispatch_batches=True`."
        )


def _iterates_like(source: Any) -> str:
    """Return the full name of the class whose `__iter__` ``source`` has."""
    function = getattr(type(source), "__iter__", None)
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}".removesuffix(
        ".__iter__"
    )
