"""Asking each host, before anything starts, whether it can run ranks, and whether all hosts are alike."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from accel_launch import __version__
from accel_launch.fingerprint import differences, digest_of_script, faults
from accel_launch.launchers.hosts import Host
from accel_launch.messages import warn
from accel_state.errors import LaunchError
from accel_state.open_files import raise_open_file_limit

_TIMEOUT_S = 60
_NUM_NAMED = 5
_SSH_FAILED = 255


def ssh_command(host: Host, options: Sequence[str], program: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs ``program`` on ``host``; it never asks for a password.

    What ssh hands over there is a text for a shell, hence the quotes.
    """
    asked = (*options, "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-T")
    return ("ssh", *asked, host.name, "--", shlex.join(program))


def check_hosts(
    hosts: Sequence[Host],
    *,
    options: Sequence[str],
    interpreter: Sequence[str],
    cwd: Path,
    script: str | None,
    is_compared: bool = True,
) -> list[dict[str, Any]]:
    """Return what each host says of itself; warn where Python or packages differ a little from those of the first.

    The machine that this one is counts only for what it starts: the version of the launcher.

    Raises:
        LaunchError: If a host cannot be reached, cannot run ranks, or differs from the first in what breaks a run; all
            of them are named, each with what is wrong.
    """
    question = json.dumps({"cwd": str(cwd), "script": script}) + "\n"
    program = (*interpreter, "-P", "-m", "accel_launch.fingerprint")
    raise_open_file_limit(3 * len(hosts) + 256)
    # All are asked before any answer is awaited: their answers take as long as the slowest, not as all together.
    started = [_asked(ssh_command(host, options, program), question) for host in hosts]
    end_s = time.monotonic() + _TIMEOUT_S
    answers = [_answer(process, end_s, interpreter[0]) for process in started]
    complaints = {
        host.name: [answer] for host, answer in zip(hosts, answers, strict=True) if isinstance(answer, str)
    }
    told = {
        host.name: answer for host, answer in zip(hosts, answers, strict=True) if not isinstance(answer, str)
    }
    if is_compared:
        complaints |= _compare(told, cwd=str(cwd), script=script)
    if complaints:
        raise LaunchError(
            "Nothing was started, since not all hosts can take part (`--no_preflight` compares nothing):\n"
            + "\n".join(f"  {name}: {_named(wrong)}" for name, wrong in complaints.items())
        )
    return list(told.values())


def _compare(hosts: Mapping[str, Mapping[str, Any]], *, cwd: str, script: str | None) -> dict[str, list[str]]:
    """Return what is wrong with hosts, by name, and warn of what may be."""
    complaints: dict[str, list[str]] = {}
    first = next(iter(hosts), "")
    for name, there in hosts.items():
        breaking, small = differences(hosts[first], there)
        breaking = faults(there, cwd=cwd, launcher=__version__) + breaking
        if breaking:
            complaints[name] = breaking
        if small:
            warn(f"{name} differs from {first}: {_named(small)}.")
    here = digest_of_script(cwd, script)
    if here and not complaints and here not in {there["script"] for there in hosts.values()}:
        warn(f"`{script}` on this machine is another than on the hosts, which run theirs.")
    return complaints


def _named(differing: Sequence[str]) -> str:
    more = f", and {len(differing) - _NUM_NAMED} more" if len(differing) > _NUM_NAMED else ""
    return ", ".join(differing[:_NUM_NAMED]) + more


def _asked(command: Sequence[str], question: str) -> subprocess.Popen[str]:
    """Start a process, and write the question to it."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, and `_answer` returns why
        process.stdin.write(question)
        process.stdin.flush()
    return process


def _answer(process: subprocess.Popen[str], end_s: float, python: str) -> dict[str, Any] | str:
    """Return the fingerprint of a host, or what is wrong with it in words."""
    try:
        stdout, stderr = process.communicate(timeout=max(1.0, end_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer within {_TIMEOUT_S} seconds"
    last_line = (stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    if process.returncode == _SSH_FAILED:
        return f"cannot be reached: {last_line}"
    if process.returncode != 0:
        return f"`{python} -m accel_launch` cannot be run there: {last_line}"
    if not stdout.strip():
        return f"`{python} -m accel_launch` said nothing there: {last_line}"
    answer: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return answer
