"""Runs real scripts in real processes, and leaves none behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import psutil

from accel_state.environment import snapshot

Launcher = Literal["accel", "torchrun"]
_DEATH_S = 10.0


def run_script(
    script: str | Path,
    *args: str,
    num_processes: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout_s: float = 120,
    launcher: Launcher = "accel",
) -> subprocess.CompletedProcess[str]:
    """Run a script as a person would and return its exit code and output.

    Args:
        num_processes: With more than one, the script is started by ``launcher`` on the CPU.
        env: Variables to add to this process's; ``OMP_NUM_THREADS`` is 1 unless given.
        cwd: The folder it runs in; this process's if omitted.
        timeout_s: After which everything that was started is killed and `subprocess.TimeoutExpired` raised,
            with the output so far.
    """
    command = [*_prefix(num_processes, launcher), str(script), *args]
    return run_command(command, env={"OMP_NUM_THREADS": "1", **(env or {})}, cwd=cwd, timeout_s=timeout_s)


def run_command(
    command: list[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own; whatever it started is dead when this returns."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**snapshot(), **(env or {})},
        cwd=cwd,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as expired:
        kill_tree(process.pid)
        stdout, stderr = process.communicate()
        expired.stdout, expired.stderr = stdout.encode(), stderr.encode()
        raise
    except BaseException:
        kill_tree(process.pid)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def kill_tree(pid: int) -> None:
    """Kill a process and all that descend from it, whatever session they are in, and see them dead."""
    try:
        parent = psutil.Process(pid)
        family = [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    deadline = time.monotonic() + _DEATH_S
    while any(map(is_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.01)


def is_alive(process: psutil.Process) -> bool:
    """Tell whether a process still runs; one that only waits for its parent to take note does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _prefix(num_processes: int, launcher: Launcher) -> list[str]:
    if num_processes == 1:
        return [sys.executable]
    if launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        return [*torchrun, "--standalone", "--nproc_per_node", str(num_processes)]
    accel = Path(sys.executable).parent / "accel"
    return [str(accel), "launch", "--cpu", "--num_processes", str(num_processes)]
