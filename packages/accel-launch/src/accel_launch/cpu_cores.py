"""How many CPU cores this process may use, and how many threads each of several ranks should start."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

# psutil knows nothing of control groups, by which containers share the cores of a machine.
_ROOT = Path("/sys/fs/cgroup")


def num_cpu_cores() -> int:
    """Return the cores that this process may run on, no more than its container's share of time comes to."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota(_own_group(), root=_ROOT) or cores)


def quota(group: str, *, root: Path) -> int | None:
    """Return the cores that a control group may use, rounded up; None where nobody limits them.

    Args:
        group: Its path below ``root``; the groups around it limit it too.
        root: Where the kernel shows control groups: ``cpu.max`` (version 2), ``cpu/cpu.cfs_quota_us`` (version 1).
    """
    found = [math.ceil(time / period) for time, period in _limits(group.strip("/"), root) if time > 0]
    return max(1, min(found)) if found else None


def threads_of(num_cores: int, *, num_ranks: int, is_on_cpu: bool) -> int:
    """Return the threads of each rank: its part of the cores, or one beside an accelerator, as torchrun has it."""
    return max(1, num_cores // num_ranks) if is_on_cpu else 1


def _limits(group: str, root: Path) -> Iterator[tuple[int, int]]:
    folder = root / group
    for path in (folder, *folder.parents):
        words = _words(path / "cpu.max")
        if len(words) == 2 and words[0] != "max":
            yield int(words[0]), int(words[1])
        if path == root:
            break
    time, period = _words(root / "cpu" / "cpu.cfs_quota_us"), _words(root / "cpu" / "cpu.cfs_period_us")
    if time and period:
        yield int(time[0]), int(period[0])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError:
        return []


def _own_group() -> str:
    lines = _words(Path("/proc/self/cgroup"))
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
