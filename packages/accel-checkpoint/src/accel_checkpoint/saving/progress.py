"""A progress bar for long saves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accel_checkpoint.files import files_below
from accel_state.availability import is_tqdm_available

QUIET_S = 3.0
"""Shorter saves show no progress bar."""
_REFRESH_S = 0.5


@contextmanager
def showing_progress(
    folder: Path,
    *,
    name: str,
    is_shown: bool,
    awaited: threading.Event | None = None,
    quiet_s: float = QUIET_S,
) -> Iterator[None]:
    """Show how many bytes have been written to ``folder``, once a caller has waited for a few seconds.

    Args:
        folder: The folder that is being written.
        name: Name to display.
        is_shown: Whether this process shows the bar.
        awaited: Set when a caller starts to wait; None if it waits from the start.
        quiet_s: How long a caller waits before the bar appears.
    """
    if not is_shown or not is_tqdm_available():
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(folder, name, over, awaited, quiet_s), name="save-progress", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(
    folder: Path, name: str, over: threading.Event, awaited: threading.Event | None, quiet_s: float
) -> None:
    while awaited is not None and not awaited.is_set():
        if over.wait(_REFRESH_S):
            return
    if over.wait(quiet_s):
        return
    from tqdm.auto import tqdm

    with tqdm(desc=f"Saving {name}", unit="B", unit_scale=True, unit_divisor=1024) as bar:
        while True:
            bar.update(max(0, _size_of(folder) - int(bar.n)))
            if over.wait(_REFRESH_S):
                return


def _size_of(folder: Path) -> int:
    try:
        return sum((folder / name).stat().st_size for name in files_below(folder))
    except FileNotFoundError:  # it has just been renamed
        return 0
