"""Whether the kernel's out-of-memory killer was at work: its counters, read before and after."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def counter_files(
    own_cgroup: Path = Path("/proc/self/cgroup"), root: Path = _CGROUP, proc: Path = Path("/proc")
) -> tuple[Path, ...]:
    """Return the files of this machine that count such kills: of our control group, else of the machine."""
    candidates: list[Path] = []
    for line in own_cgroup.read_text().splitlines() if own_cgroup.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            candidates.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            candidates.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    # In a container our group is the root that is mounted, whatever its path is called outside.
    candidates += [root / "memory.events", root / "memory" / "memory.oom_control"]
    found = [path for path in candidates if path.is_file()]
    return (found[0],) if found else tuple(path for path in (proc / "vmstat",) if path.is_file())


def num_memory_kills(files: Iterable[Path]) -> int:
    """Return how many processes were killed for want of memory so far."""
    total = 0
    for file in files:
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                total += int(number)
    return total
