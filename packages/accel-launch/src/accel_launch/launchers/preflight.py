"""Asking each host, before anything starts, whether it is like this one."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel_launch.fingerprint import differences, fingerprint
from accel_launch.launchers.hosts import Host
from accel_state.errors import LaunchError

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
) -> int:
    """Compare Python, packages and script of all hosts with those here; return a port that is free on the first.

    Raises:
        LaunchError: If a host cannot be reached or differs; all of them are named, each with what is wrong.
    """
    question = json.dumps({"cwd": str(cwd), "script": script}) + "\n"
    program = (*interpreter, "-P", "-m", "accel_launch.fingerprint")
    started = [
        subprocess.Popen(
            ssh_command(host, options, program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for host in hosts
    ]
    here = fingerprint(str(cwd), script)
    answers = [_answer(process, question, interpreter[0]) for process in started]
    complaints = []
    for host, answer in zip(hosts, answers, strict=True):
        wrong = [answer] if isinstance(answer, str) else differences(here, answer)
        if wrong:
            more = f", and {len(wrong) - _NUM_NAMED} more" if len(wrong) > _NUM_NAMED else ""
            complaints.append(f"  {host.name}: {', '.join(wrong[:_NUM_NAMED])}{more}")
    if complaints:
        raise LaunchError(
            "Nothing was started, since not all hosts are like this one:\n" + "\n".join(complaints)
        )
    first = answers[0]
    assert not isinstance(first, str)
    return int(first["free_port"])


def _answer(process: subprocess.Popen[str], question: str, python: str) -> dict[str, Any] | str:
    """Return the fingerprint of a host, or what is wrong with it in words."""
    try:
        stdout, stderr = process.communicate(question, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer within {_TIMEOUT_S} seconds"
    last_line = (stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    if process.returncode == _SSH_FAILED:
        return f"cannot be reached: {last_line}"
    if process.returncode != 0:
        return f"`{python} -m accel_launch` cannot be run there: {last_line}"
    answer: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return answer
