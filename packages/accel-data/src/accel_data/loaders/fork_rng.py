"""Global random number generators that a block leaves as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accel_ops.random import capture_rng_states, restore_rng_states


@contextmanager
def fork_rng(*, enabled: bool) -> Iterator[None]:
    """Restore the global generators of this process, on all devices, after the body.

    Loaders open a pass in it that resumes an epoch: torch draws a seed for the workers whenever a pass is
    opened, and the state that was saved includes the draw of the first time.

    Args:
        enabled: If False the body may draw.
    """
    if not enabled:
        yield
        return
    states = capture_rng_states()
    try:
        yield
    finally:
        restore_rng_states(states)
