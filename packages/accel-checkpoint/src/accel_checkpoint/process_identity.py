"""Stamps that identify processes, so that others can check whether one has ended, and tokens of their saves."""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
from pathlib import Path

STAMP = r"[0-9a-f]{8}-\d+-\d+"
"""Regular expression that matches a stamp."""
TOKEN = rf"[0-9a-f]{{8}}-({STAMP})-\d+"
"""Regular expression that matches the token of a save; its group is the stamp of the process that made it."""
_numbers = itertools.count(1)


def new_token() -> str:
    """Return a token that identifies a save of this process."""
    return f"{secrets.token_hex(4)}-{stamp()}-{next(_numbers)}"


def stamp() -> str:
    """Return the stamp of this process: a digest of boot id and PID namespace, the PID, and the start time.

    Without `/proc` the start time is 0, and the stamp identifies nothing.
    """
    machine, pid, started = "", 0, ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        machine = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
        pid, started = os.getpid(), _start_time(os.getpid()) or ""
    except OSError:
        machine = ""
    digest = hashlib.blake2b(machine.encode(), digest_size=4).hexdigest()
    return f"{digest}-{pid}-{started or 0}"


def has_ended_by_stamp(left: str, *, own: str | None = None) -> bool | None:
    """Whether the process of a stamp has ended; None if it ran on another machine or before the last reboot.

    Args:
        left: The stamp.
        own: The stamp of this process, to compute it once for many calls.
    """
    machine, pid, started = left.split("-")
    here = stamp() if own is None else own
    if machine != here.partition("-")[0] or started == "0":
        return None
    return _start_time(int(pid)) not in (started, None)


def _start_time(pid: int) -> str | None:
    """Return the start time of a process, in clock ticks since boot; empty if it has ended, None if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the program's name may contain spaces and brackets
    return "" if fields[0] in "ZX" else fields[19]  # a zombie, or dead; field 22 of proc(5), the start time
