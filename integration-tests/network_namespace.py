"""A network of its own: every port is free in it, and whatever runs in it can be found and ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_PREFIX = "accel-test"


def why_not() -> str | None:
    """Return what this machine lacks for it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None:
        return "`ip` is not installed"
    name = f"{_PREFIX}-{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=20, check=False).returncode:
        return "this machine may not make network namespaces"
    ip("netns", "delete", name)
    return None


@contextmanager
def network_namespace(label: str) -> Iterator[str]:
    """Make a namespace with a loopback device; in the end, kill what still runs in it and delete it.

    Args:
        label: Tells the namespaces of one process apart.
    """
    name = f"{_PREFIX}-{os.getpid()}-{label}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _delete(name)


def within(name: str, command: Sequence[str]) -> list[str]:
    """Return the words that run ``command`` in a namespace. (`ip netns exec` would hide /sys/fs/cgroup.)"""
    return ["nsenter", f"--net=/run/netns/{name}", *command]


@contextmanager
def daemon(name: str, command: Sequence[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in the namespace ``name``. It ends with the ``with`` block, and at the latest with this process."""
    words = ["setpriv", "--pdeathsig", "KILL", *within(name, command)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the tests as Ctrl-C does, so that what they started is taken down."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def ip(*arguments: str, check: bool = True) -> str:
    """Run `ip` and return what it prints."""
    return subprocess.run(
        ["ip", *arguments], stdout=subprocess.PIPE, text=True, timeout=30, check=check
    ).stdout


def _delete(name: str) -> None:
    deadline = time.monotonic() + 20
    while (pids := ip("netns", "pids", name, check=False).split()) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)
    ip("netns", "delete", name, check=False)
