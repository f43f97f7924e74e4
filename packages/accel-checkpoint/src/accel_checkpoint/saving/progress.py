"""A progress bar for long saves and merges."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from accel_checkpoint.files import files_below
from accel_state.availability import is_tqdm_available

QUIET_S = 3.0
"""Shorter work shows no progress bar."""
_REFRESH_S = 0.5


@contextmanager
def showing_progress(
    num_bytes: Callable[[], int],
    *,
    label: str,
    is_shown: bool,
    total: int | None = None,
    awaited: threading.Event | None = None,
    quiet_s: float = QUIET_S,
) -> Iterator[None]:
    """Show how many bytes have been written, once a caller has waited for a few seconds.

    Args:
        num_bytes: Returns how many there are by now; called in another thread.
        label: What the bar says before the number.
        is_shown: Whether this process shows the bar.
        total: How many there will be, if that is known.
        awaited: Set when a caller starts to wait; None if it waits from the start.
        quiet_s: How long a caller waits before the bar appears; with 0 it appears however short the work is.
    """
    if not is_shown or not is_tqdm_available():
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while awaited is not None and not awaited.is_set():
            if over.wait(_REFRESH_S):
                return
        if quiet_s > 0 and over.wait(quiet_s):
            return
        from tqdm.auto import tqdm

        with tqdm(desc=label, total=total, unit="B", unit_scale=True, unit_divisor=1024) as bar:
            is_over = False
            while not is_over:
                is_over = over.wait(_REFRESH_S)
                bar.update(max(0, num_bytes() - int(bar.n)))

    watcher = threading.Thread(target=watch, name="save-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def size_of_folder(folder: Path) -> int:
    """Return how many bytes the files in a folder have; 0 if it has just been renamed."""
    try:
        return sum((folder / name).stat().st_size for name in files_below(folder))
    except FileNotFoundError:
        return 0
