"""What several processes need of the operating system, and Windows does not have."""

from __future__ import annotations

import os

from accel_state.errors import NotAvailableError


def require_fork(what: str) -> None:
    """Raise ``NotAvailableError``, which names ``what`` cannot be done, where processes cannot be forked."""
    if not hasattr(os, "fork"):
        raise NotAvailableError(
            f"{what} needs processes that can be forked, which Windows cannot do. Start one process by "
            "`python script.py`, or work in WSL2, where everything runs as on Linux."
        )
