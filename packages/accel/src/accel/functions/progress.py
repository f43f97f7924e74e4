"""Progress bars that show once, not once per process."""

from __future__ import annotations

from typing import Any

import accel_state
from accel_state.errors import NotAvailableError


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """Return `tqdm.auto.tqdm`, shown on each machine's main process only.

    Args:
        *args: What `tqdm` takes; first the iterable, or nothing with `total`.
        main_process_only: Turn off to show a bar in every process.
        **kwargs: What `tqdm` takes.

    Raises:
        NotAvailableError: If the package `tqdm` is not installed.
    """
    try:
        from tqdm.auto import tqdm as bar
    except ImportError as missing:
        raise NotAvailableError(
            "Progress bars need the package `tqdm`, which is not installed. Run `pip install tqdm`."
        ) from missing
    if main_process_only:
        kwargs["disable"] = (
            bool(kwargs.get("disable", False)) or not accel_state.PartialState().is_local_main_process
        )
    return bar(*args, **kwargs)
