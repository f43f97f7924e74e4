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
from accel_launch.messages import warn
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
    is_compared: bool = True,
) -> list[dict[str, Any]]:
    """Return what each host says of itself; warn where Python, packages or script differ a little from those here.

    Raises:
        LaunchError: If a host cannot be reached or differs in what breaks a run; all of them are named, each with
            what is wrong.
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
    complaints, remarks = [], []
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, str):
            complaints.append(f"  {host.name}: {answer}")
            continue
        breaking, small = differences(here, answer) if is_compared else ([], [])
        complaints += [f"  {host.name}: {_named(breaking)}"] if breaking else []
        remarks += [f"{host.name} differs from this machine: {_named(small)}."] if small else []
    if complaints:
        raise LaunchError(
            "Nothing was started, since not all hosts are like this one (`--no_preflight` compares nothing):\n"
            + "\n".join(complaints)
        )
    for remark in remarks:
        warn(remark)
    return [answer for answer in answers if not isinstance(answer, str)]


def _named(differing: Sequence[str]) -> str:
    more = f", and {len(differing) - _NUM_NAMED} more" if len(differing) > _NUM_NAMED else ""
    return ", ".join(differing[:_NUM_NAMED]) + more


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
    if not stdout.strip():
        return f"`{python} -m accel_launch` said nothing there: {last_line}"
    answer: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return answer
