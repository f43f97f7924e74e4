"""Asking each host, before anything starts, whether it can run ranks, and whether all hosts are alike."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from accel_launch import __version__
from accel_launch.fingerprint import differences, digest_of_script, faults
from accel_launch.launchers.hosts import Host
from accel_launch.messages import escaped, warn
from accel_launch.remote_protocol import Types, read_table
from accel_state.errors import LaunchError
from accel_state.open_files import raise_open_file_limit

_TIMEOUT_S = 60
_NUM_NAMED = 5
_SSH_FAILED = 255
_NUM_CHARACTERS = 200
_MAX_ANSWER_BYTES = 2**20
_TYPES: Types = {
    **dict.fromkeys(("directory", "script"), (str, type(None))),
    "python": str,
    "packages": dict,
    **dict.fromkeys(("free_port", "num_accelerators"), int),
}


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
    """Return the answer of each host; warn if Python or packages differ a little from those of the first.

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
    if here and hosts and not complaints and here not in {there["script"] for there in hosts.values()}:
        warn(f"`{script}` on this machine is another than on the hosts, which run theirs.")
    return complaints


def _named(differing: Sequence[str]) -> str:
    more = f", and {len(differing) - _NUM_NAMED} more" if len(differing) > _NUM_NAMED else ""
    return ", ".join(map(escaped, differing[:_NUM_NAMED])) + more


def _asked(command: Sequence[str], question: str) -> subprocess.Popen[bytes]:
    """Start a process, and write the question to it."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, and `_answer` returns why
        process.stdin.write(question.encode())
        process.stdin.close()
    return process


def _answer(process: subprocess.Popen[bytes], end_s: float, python: str) -> dict[str, Any] | str:
    """Return the fingerprint of a host, or what is wrong with it in words."""
    assert process.stdout is not None
    timer = threading.Timer(max(1.0, end_s - time.monotonic()), process.kill)
    timer.start()
    with process:
        told = process.stdout.read(_MAX_ANSWER_BYTES + 1)
        is_late = not timer.is_alive()
        timer.cancel()
        if len(told) > _MAX_ANSWER_BYTES:
            process.kill()
            return f"`{python} -m accel_launch` wrote more than {_MAX_ANSWER_BYTES >> 20} MiB there"
    if is_late:
        return f"no answer within {_TIMEOUT_S} seconds"
    lines = told.decode(errors="replace").strip().splitlines()
    last_line = escaped(lines[-1][-_NUM_CHARACTERS:]) if lines else f"exit code {process.returncode}"
    if process.returncode == _SSH_FAILED:
        return f"cannot be reached: {last_line}"
    if process.returncode != 0:
        return f"`{python} -m accel_launch` cannot be run there: {last_line}"
    # Start-up files of the shell there may write lines, too.
    answers = filter(None, (read_table(line, _TYPES) for line in reversed(lines)))
    return next(answers, None) or f"`{python} -m accel_launch` did not answer there: {last_line}"
