"""What the order of an epoch is drawn from: which sampler, and which random number generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler

from accel_data.samplers import torchdata
from accel_data.samplers.order import draw_order, draw_seed, has_order


class PassGenerator(torch.Generator):
    """Replaces torch's default generator during one pass, so that its state can be saved and shared."""


@dataclass(frozen=True, slots=True)
class OrderSource:
    """The batch sampler of a user, and the sampler below it if there is one.

    Args:
        batch_sampler: Yields lists of indices.
    """

    batch_sampler: Any

    @property
    def sampler(self) -> Any:
        """The sampler that the batch sampler has, None if it has none."""
        return getattr(self.batch_sampler, "sampler", None)

    @property
    def flat_sampler(self) -> Any:
        """The sampler whose indices torch's own batch sampler, or torchdata's, cuts into batches; None for other
        batch samplers.
        """
        given = self.batch_sampler
        is_flat = type(given).__iter__ is BatchSampler.__iter__ or torchdata.makes_batches(given)
        return given.sampler if is_flat else None

    @property
    def has_order(self) -> bool:
        """Whether the order can be entered anywhere."""
        sampler = self.flat_sampler
        return sampler is not None and has_order(sampler)

    @property
    def iterated(self) -> Any:
        """The sampler that is iterated where the order cannot be entered anywhere."""
        flat = self.flat_sampler
        return self.batch_sampler if flat is None else flat

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that the user gave to the sampler or the batch sampler, None if there is none."""
        return next(filter(None, map(_given_generator, (self.sampler, self.batch_sampler))), None)

    @property
    def draws_from_default(self) -> bool:
        """Whether the order is drawn from torch's default generator, as far as can be told."""
        return self.generator is None and bool(self._without_generator())

    @property
    def seeds_itself(self) -> bool:
        """Whether one number drawn from the default generator is the seed of the order."""
        return isinstance(self.sampler, RandomSampler)

    @property
    def is_synchronized(self) -> bool:
        """Whether everything that is iterated draws from generators that the ranks share."""
        return hasattr(self.iterated, "generator") and all(
            getattr(one, "generator", self) is not None for one in (self.sampler, self.batch_sampler)
        )

    def advance_default_generator(self) -> None:
        """Draw from torch's default generator what a pass draws, without reading anything."""
        if not self.draws_from_default:
            return
        flat = self.flat_sampler
        if isinstance(flat, RandomSampler) or not self.has_order:
            draw_seed()
        else:
            draw_order(flat)

    @contextmanager
    def drawing_from(self, generator: torch.Generator) -> Iterator[None]:
        """Let samplers that take a generator and have none draw from ``generator`` in the body."""
        sources = self._without_generator()
        for source in sources:
            source.generator = generator
        try:
            yield
        finally:
            for source in sources:
                source.generator = None

    def _without_generator(self) -> list[Any]:
        """Return the samplers that take a generator and have not been given one."""
        both = (self.sampler, self.batch_sampler)
        return [one for one in both if hasattr(one, "generator") and _given_generator(one) is None]


def _given_generator(source: Any) -> torch.Generator | None:
    generator = getattr(source, "generator", None)
    is_given = isinstance(generator, torch.Generator) and not isinstance(generator, PassGenerator)
    return generator if is_given else None
