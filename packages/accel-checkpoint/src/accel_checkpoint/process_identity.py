"""A unique identity for a process, by which other processes can check whether it has ended."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

STAMP = r"[0-9a-f]{8}-\d+-\d+"
"""Regular expression that matches a stamp."""


def this_process() -> str:
    """Return the identity of this process: boot id, PID namespace, PID and start time. Empty without `/proc`."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace, begin = Path("/proc/self/ns/pid").readlink(), _begin_of(os.getpid())
    except OSError:
        return ""
    return f"{boot} {namespace} {os.getpid()} {begin}" if begin else ""


def has_ended(process: str, *, own: str | None = None) -> bool:
    """Whether the process that `this_process` identified has ended; False if it cannot be looked up here.

    Args:
        process: What `this_process` returned there.
        own: What `this_process` returns here, if the caller asks about many processes.
    """
    *_, pid, begin = process.split() or [""] * 4
    return is_of_this_machine(process, own=own) and _begin_of(int(pid)) not in (begin, None)


def is_of_this_machine(process: str, *, own: str | None = None) -> bool:
    """Whether the process that `this_process` identified can be looked up here; see `has_ended`."""
    *machine, _, _ = process.split() or [""] * 4
    *here, _, _ = (this_process() if own is None else own).split() or [""] * 4
    return machine == here and "" not in machine


def _begin_of(pid: int) -> str | None:
    """Return the start time of a process, in clock ticks since boot; empty if it has ended, None if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the program's name may contain spaces and brackets
    return "" if fields[0] in "ZX" else fields[19]


def stamp() -> str:
    """Return `this_process` in a form for file names: a digest of boot id and namespace, PID, start time."""
    *machine, pid, begin = this_process().split() or ["", "", "0", "0"]
    digest = hashlib.blake2b(" ".join(machine).encode(), digest_size=4).hexdigest()
    return f"{digest}-{pid}-{begin}"


def has_ended_by_stamp(left: str) -> bool | None:
    """Whether the process of a stamp has ended; None if it ran on another machine or before the last reboot."""
    machine, pid, begin = left.split("-")
    # Without `/proc` the start time is 0, and stamps identify nothing.
    if machine != stamp().partition("-")[0] or begin == "0":
        return None
    now = _begin_of(int(pid))
    return None if now is None else now != begin
