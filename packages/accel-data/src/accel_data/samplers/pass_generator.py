"""The generator of one pass over samplers that have none of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class PassGenerator(torch.Generator):
    """Stands in for torch's default generator during one pass, so that its state can be saved and shared."""


def own_generator(source: Any) -> torch.Generator | None:
    """Return the generator that the user gave to a sampler or a batch sampler, None if there is none."""
    generator = getattr(source, "generator", None)
    is_given = isinstance(generator, torch.Generator) and not isinstance(generator, PassGenerator)
    return generator if is_given else None


def wants_generator(source: Any) -> bool:
    """Tell whether a sampler takes a generator and has not been given one: it draws from torch's default."""
    return hasattr(source, "generator") and own_generator(source) is None


@contextmanager
def drawing_from(generator: torch.Generator, sources: Sequence[Any]) -> Iterator[None]:
    """Let ``sources``, which want a generator, draw from ``generator`` in the body."""
    for source in sources:
        source.generator = generator
    try:
        yield
    finally:
        for source in sources:
            source.generator = None
