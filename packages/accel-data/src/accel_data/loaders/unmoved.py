"""Random number generators that stay where they are while a pass is opened in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accel_ops.random.state import capture_rng_states, restore_rng_states


@contextmanager
def generators_unmoved(is_continued: bool) -> Iterator[None]:
    """Undo what the body draws from the global generators if the pass that it opens goes on with an epoch.

    The epoch that is gone on with was opened once already, and what that drew is part of the states that were
    saved: torch draws a seed for the workers each time it opens a pass.
    """
    if not is_continued:
        yield
        return
    states = capture_rng_states()
    try:
        yield
    finally:
        restore_rng_states(states)
