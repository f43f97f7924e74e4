"""What the operating system and this process are like."""

from __future__ import annotations

import platform
import re
import sys
import warnings

_OLDEST_LINUX = (5, 5, 0)


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Return those of the named top-level modules that have been imported in this process."""
    return [name for name in library_names if name in sys.modules]


def check_os_kernel() -> None:
    """Warn if the Linux kernel is older than 5.5.0, under which processes have been seen to hang."""
    if platform.system() != "Linux":
        return
    release = platform.release()
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
    if match is None:
        return
    if tuple(int(part or 0) for part in match.groups()) < _OLDEST_LINUX:
        oldest = ".".join(map(str, _OLDEST_LINUX))
        warnings.warn(
            f"The Linux kernel {release} is older than {oldest}, under which processes have been seen to "
            f"hang. Use kernel {oldest} or newer.",
            stacklevel=2,
        )
