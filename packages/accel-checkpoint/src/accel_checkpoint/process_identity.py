"""What tells a process from all others, so that it can be known later whether it has ended."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

STAMP = r"[0-9a-f]{8}-\d+-\d+"
"""What stamps look like, as a regular expression."""


def this_process() -> str:
    """Return what tells this process from all others, in a way that others on the machine can check.

    Empty where the system has no such thing.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return f"{boot} {namespace} {os.getpid()} {_begin_of(os.getpid())}"


def has_ended(process: str) -> bool:
    """Whether a process of this machine, as it gave itself out by `this_process`, is gone; False where not known."""
    *machine, pid, begin = process.split() or [""] * 4
    *here, _, _ = this_process().split() or [""] * 4
    return machine == here and "" not in machine and _begin_of(int(pid)) != begin


def _begin_of(pid: int) -> str:
    """Return when a process began, in the kernel's units since boot; empty if there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the name of the program may hold anything
    return "" if fields[0] in "ZX" else fields[19]


def stamp() -> str:
    """Return `this_process` in a form that fits into the name of a file: a digest of the machine, pid and begin."""
    *machine, pid, begin = this_process().split() or ["", "", "0", "0"]
    digest = hashlib.blake2b(" ".join(machine).encode(), digest_size=4).hexdigest()
    return f"{digest}-{pid}-{begin}"


def has_ended_by_stamp(left: str) -> bool | None:
    """Whether the process that left a stamp has ended; None if it ran on another machine, or before this one booted."""
    machine, pid, begin = left.split("-")
    if (
        machine != stamp().partition("-")[0] or begin == "0"
    ):  # where the system tells no begin, all stamps are alike
        return None
    return _begin_of(int(pid)) != begin
