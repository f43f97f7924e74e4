"""The order of an epoch: drawn by the user's sampler, from random state that is saved to draw it again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from accel_ops.collectives import broadcast
from accel_ops.objects import gather_object
from accel_ops.random import capture_rng_states, restore_rng_states
from accel_state.errors import ConfigError

T = TypeVar("T")

#: Indices of an order given as a list that the ranks compare.
_NUM_COMPARED = 1024
_SEQUENTIAL = "torch.utils.data.sampler.SequentialSampler"
_SEEDABLE = "accel_data.samplers.seedable.SeedableRandomSampler"
_TORCHDATA = "torchdata.stateful_dataloader.sampler"
#: Classes of finite samplers: a pass may start anywhere in their order. By name: torchdata may be missing.
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


def flat_sampler_of(batch_sampler: Any) -> Any:
    """Return the sampler whose indices torch's or torchdata's `BatchSampler` splits into batches, else None."""
    return batch_sampler.sampler if _iterates_like(batch_sampler) in _BATCH_SAMPLERS else None


def is_finite(sampler: Any) -> bool:
    """Whether the order of ``sampler`` is a finite sequence: a pass can start anywhere in it."""
    return isinstance(sampler, (list, tuple, range)) or _iterates_like(sampler) in _FINITE


def is_fixed(sampler: Any) -> bool:
    """Whether the order of ``sampler`` does not depend on torch's default generator."""
    return isinstance(sampler, (list, tuple, range)) or _iterates_like(sampler) in (_SEQUENTIAL, _SEEDABLE)


# The sampler itself draws the order, to its end, before the first batch: a copy of torch's draws would shuffle
# differently after a change in torch, without a word. Ten million indices take one or two seconds.
class EpochOrder:
    """The order of one pass.

    Args:
        generator: The user's generator that it is drawn from, None if there is none.
        batch_sampler: The user's batch sampler, which may draw from torch's default generator; None for a stream.
        state: State of the generator to draw the order from. None: the current one.
        is_shared: Whether other ranks share the order. Every rank must then draw it: drawing is a collective.

    Attributes:
        state: The state that the order was drawn from; None before that, and if the order needs none.
    """

    def __init__(
        self,
        generator: torch.Generator | None = None,
        batch_sampler: Any = None,
        *,
        state: torch.Tensor | None = None,
        is_shared: bool = False,
    ) -> None:
        self.state = state
        self.is_shared = is_shared
        self._generator = generator
        self._draws_from_default = (
            batch_sampler is not None and generator is None and not is_fixed(flat_sampler_of(batch_sampler))
        )
        self._has_started = False
        #: State of a separate default generator for this order; None while it draws from the process's.
        self._default_state: torch.Tensor | None = None

    def indices(self, sampler: Any) -> Sequence[int]:
        """Draw the full order of a sampler that has a finite one."""
        if isinstance(sampler, (list, tuple)) and self.is_shared:
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
        """Samplers in the body continue from the random state of this order.

        The default generator of torch moves only if the order is a new one, and then as in plain PyTorch.
        """
        if not self._has_started:
            self.start()
        if self._default_state is None:
            yield
            if self.is_shared and self._draws_from_default:
                # Other draws of this rank must not change the order.
                self._default_state = torch.get_rng_state()
        else:
            before = torch.get_rng_state()
            torch.set_rng_state(self._default_state)
            try:
                yield
            finally:
                self._default_state = torch.get_rng_state()
                torch.set_rng_state(before)

    def start(self) -> None:
        """Fix the random state to draw from. A collective, if the ranks share the default generator."""
        self._has_started = True
        generator, state = self._generator, self.state
        if generator is not None:
            if state is None:
                self.state = generator.get_state()
            else:
                generator.set_state(state)
        elif state is not None:
            self._default_state = state
        elif self._draws_from_default:
            here = torch.get_rng_state()
            self.state = broadcast(here.clone()) if self.is_shared else here
            if not torch.equal(self.state, here):
                self._default_state = self.state


@contextmanager
def fork_rng(*, enabled: bool) -> Iterator[None]:
    """Restore the global generators of this process, on all devices, after the body, unless it may draw.

    A pass that resumes an epoch is opened in it: torch draws a seed for the workers whenever a pass is
    opened, and the saved state already includes the first such draw.
    """
    if not enabled:
        yield
        return
    states = capture_rng_states()
    try:
        yield
    finally:
        restore_rng_states(states)


def check_same_order(source: Any, first: Sequence[Any]) -> None:
    """Compare the start of the order on all ranks. Every rank must call it; it blocks until all have.

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
            "twice or never. Use an attribute `generator` in the same state on all "
            "processes, or a fixed seed and `set_epoch`; or pass `dispatch_batches=True`."
        )


def _iterates_like(source: Any) -> str:
    """Return the full name of the class whose `__iter__` ``source`` has."""
    function = getattr(type(source), "__iter__", None)
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}".removesuffix(
        ".__iter__"
    )
