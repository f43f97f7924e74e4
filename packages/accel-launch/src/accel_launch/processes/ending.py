"""How a process ended, in numbers and words, and whether the kernel's out-of-memory killer was at work."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path


def exit_code_for_shell(return_code: int) -> int:
    """Turn a return code of `subprocess` into the exit code of a shell: signal ``n`` becomes ``128 + n``."""
    return return_code if return_code >= 0 else 128 - return_code


def signal_name(number: int) -> str:
    """Return ``SIGSEGV`` for 11; ``signal 40`` where the signal has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_ending(return_code: int, *, num_memory_kills: int = 0) -> str:
    """Say how a process ended: ``ended with exit code 3``, ``was killed by SIGSEGV``.

    Where the kernel has killed processes for want of memory during the run, a SIGKILL is taken to be that.
    """
    if return_code >= 0:
        return f"ended with exit code {return_code}"
    if return_code == -signal.SIGKILL and num_memory_kills:
        return "was killed by the out-of-memory killer"
    return f"was killed by {signal_name(-return_code)}"


# psutil knows nothing of control groups, nor of the kernel's killing.
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
