"""The limit of files that this process may have open; sockets and pipes count as files."""

from __future__ import annotations

import sys


def raise_open_file_limit(num_files: int) -> int:
    """Raise the soft limit to ``num_files``, as far as the hard limit allows; return how many may be open then."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows, which has no such limit
        return num_files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < num_files:
        soft = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return num_files if soft == resource.RLIM_INFINITY else soft


def max_open_files() -> int:
    """Return the number of open files that `raise_open_file_limit` can reach."""
    try:
        import resource
    except ModuleNotFoundError:
        return sys.maxsize
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
