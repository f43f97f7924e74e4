"""Commands that tests run as users would, with the signatures that users know."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from accel.test_utils.hardware import get_backend
from accel_state.environment import variable

_FIRST_PORT = 29500


class SubprocessCallException(RuntimeError):
    """A command failed; the message has its standard error."""


@dataclass(frozen=True)
class RunOutput:
    """The exit code of a command and what it printed, by lines."""

    returncode: int
    stdout: list[str]
    stderr: list[str]


def execute_subprocess_async(
    cmd: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    stdin: IO[Any] | int | None = None,
    timeout: float = 180,
    quiet: bool = False,
    echo: bool = True,
) -> RunOutput:
    """Run a command to its end, print what it printed, and return that.

    Args:
        env: All of the command's environment; this process's if omitted.
        timeout: In seconds; the command and its descendants are then killed.
        quiet: Do not print what it printed.
        echo: Print the command.

    Raises:
        SubprocessCallException: If it failed, a RuntimeError; the message has its standard error.
        subprocess.TimeoutExpired: If it took too long.
    """
    words = [str(word) for word in cmd]
    if echo:
        sys.stdout.write(f"\nRunning: {' '.join(words)}\n")
    process = subprocess.Popen(
        words,
        env=env,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:  # the timeout, or Ctrl-C: no process may outlive the test
        _kill_tree(process.pid)
        process.communicate()
        raise
    if not quiet:
        sys.stdout.write(stdout)
        sys.stderr.write(stderr)
    if process.returncode != 0:
        raise SubprocessCallException(
            f"`{' '.join(words)}` failed with exit code {process.returncode}. Its standard error:\n{stderr}"
        )
    return RunOutput(process.returncode, stdout.splitlines(), stderr.splitlines())


def _kill_tree(pid: int) -> None:
    """Kill a process and its descendants, including other sessions."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def run_command(
    command: Sequence[str | Path], return_stdout: bool = False, env: Mapping[str, str] | None = None
) -> str | None:
    """Run a command quietly, and return its output if ``return_stdout``.

    Raises:
        SubprocessCallException: If it failed, with its standard error.
    """
    done = execute_subprocess_async(command, env=env, timeout=600, quiet=True, echo=False)
    return "".join(f"{line}\n" for line in done.stdout) if return_stdout else None


def get_launch_command(**kwargs: object) -> list[str]:
    """Return the words of ``accel launch`` with flags: ``num_processes=2`` is ``--num_processes=2``.

    True is a flag without a value; what is None is left out.
    """
    flags = [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in kwargs.items()
        if value is not None
    ]
    return [sys.executable, "-m", "accel_launch", "launch", *flags]


def get_torch_dist_unique_port() -> int:
    """Return a port for the processes of this test, another one for each worker of pytest-xdist."""
    return _FIRST_PORT + pytest_xdist_worker_id()


def pytest_xdist_worker_id() -> int:
    """Return the number of this worker of pytest-xdist, 0 without."""
    return int((variable("PYTEST_XDIST_WORKER") or "gw0").removeprefix("gw"))


def __getattr__(name: str) -> object:
    if name == "DEFAULT_LAUNCH_COMMAND":
        return get_launch_command(num_processes=get_backend()[1], monitor_interval=0.1)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`", name=name)
