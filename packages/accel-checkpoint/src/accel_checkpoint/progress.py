"""Progress bars of work that takes more than a few seconds. Imports neither torch nor, before that, tqdm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

QUIET_S = 3.0
"""Shorter work shows no progress bar; with 0 all work shows one."""
_POLL_S = 0.1

Advance = Callable[[int], object]
"""Receives numbers of bytes that were written since the last call."""


@contextmanager
def progress_bar(
    label: str, *, is_shown: bool = True, total: int | None = None, quiet_s: float = QUIET_S
) -> Iterator[Advance | None]:
    """Show after ``quiet_s`` how many bytes have been written, if `tqdm` is installed, and yield what advances the bar.

    ``total`` is the number of bytes in the end, if known; headers of files come on top.
    """
    if not is_shown or find_spec("tqdm") is None:
        yield None
        return
    from tqdm.auto import tqdm

    with tqdm(desc=label, total=total, delay=quiet_s, unit="B", unit_scale=True, unit_divisor=1024) as bar:
        yield lambda num_bytes: bar.update(num_bytes if total is None else min(num_bytes, total - bar.n))


@contextmanager
def watched(
    label: str,
    num_bytes: Callable[[], int],
    *,
    total: int | None = None,
    is_shown: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Show how far the work in the block is, which ``num_bytes`` counts, if it takes longer than `QUIET_S`.

    A thread looks at the count, so that the work itself waits for nothing; only then ``is_shown`` is called.
    """
    ended = threading.Event()
    arguments = (ended, label, num_bytes, num_bytes(), total, is_shown)
    watching = threading.Thread(target=_watch, args=arguments, daemon=True)  # not waited for at exit
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _watch(
    ended: threading.Event,
    label: str,
    num_bytes: Callable[[], int],
    before: int,
    total: int | None,
    is_shown: Callable[[], bool],
) -> None:
    if QUIET_S and ended.wait(QUIET_S):
        return
    with progress_bar(label, is_shown=is_shown(), total=total, quiet_s=0) as advance:
        has_ended = False
        while advance is not None and not has_ended:
            has_ended = ended.wait(_POLL_S)
            now = num_bytes()
            advance(now - before)
            before = now
