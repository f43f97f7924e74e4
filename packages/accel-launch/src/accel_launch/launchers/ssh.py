"""Several machines from one terminal, over ssh (``--hosts``, ``--hostfile``)."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from accel_launch.interpreter import interpreter_command
from accel_launch.launchers.hosts import Host, hosts_of, num_ranks_on_each
from accel_launch.launchers.preflight import check_hosts, ssh_command
from accel_launch.launchers.ranks import asked_port, plan_ranks, report_file
from accel_launch.launchers.routes import route
from accel_launch.messages import complain
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.ending import describe_ending, exit_code_for_shell
from accel_launch.processes.output import MESSAGE_MARK
from accel_launch.processes.supervision import run_processes
from accel_launch.processes.supervisor import RunEnding
from accel_launch.reports.run_report import RankEnding, make_report
from accel_launch.reports.telling import tell
from accel_launch.request import LaunchRequest
from accel_state.environment import snapshot
from accel_state.errors import NotAvailableError

# Beyond the time the hosts give their ranks, for the way there and back.
_SLACK_S = 3.0


class SSHLauncher:
    """Starts a small program on each host, which gets its part of the plan and runs the ranks there."""

    name: ClassVar[str] = "ssh"

    def accepts(self, request: LaunchRequest) -> bool:
        return route(request) == self.name

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        hosts = hosts_of(request)
        num_on_each = num_ranks_on_each(request, hosts)
        whole = replace(request, num_processes=num_on_each * len(hosts), num_machines=len(hosts))
        address: str = request.value("master_addr") or hosts[0].address
        processes = [
            replace(process, host=host.name, unset=())
            for machine_rank, host in enumerate(hosts)
            for process in plan_ranks(
                whole, num_here=num_on_each, machine_rank=machine_rank, master_addr=address
            )
        ]
        return LaunchPlan(
            self.name,
            tuple(processes),
            num_ranks=whole.num_processes,
            grace_period_s=request.value("grace_period_s"),
            port=asked_port(request) or None,
            is_quiet=request.is_quiet,
            report=report_file(request),
            options={
                "ssh_options": request.value("ssh_options") or "",
                "script": request.command[0] if request.kind == "script" else "",
            },
        )

    def run(self, plan: LaunchPlan) -> int:
        if shutil.which("ssh", path=snapshot().get("PATH")) is None:
            raise NotAvailableError("`--hosts` needs the program `ssh`, which is not installed.")
        hosts = [Host(name) for name in dict.fromkeys(process.host for process in plan.processes)]
        options = shlex.split(plan.options["ssh_options"])
        interpreter = interpreter_command()
        free_port = check_hosts(
            hosts,
            options=options,
            interpreter=interpreter,
            cwd=plan.processes[0].cwd,
            script=plan.options["script"] or None,
        )
        port = str(plan.port or free_port)
        node = (*interpreter, "-P", "-m", "accel_launch.node")
        ending = run_processes(
            [ProcessPlan(ssh_command(host, options, node), Path.cwd()) for host in hosts],
            host_environ=snapshot(),
            grace_period_s=plan.grace_period_s + _SLACK_S,
            prefixes=_prefixes(hosts),
            orders=[_order(plan, host, port) for host in hosts],
        )
        return _tell(plan, hosts, ending)


def _order(plan: LaunchPlan, host: Host, port: str) -> bytes:
    processes = [
        process.with_variables(MASTER_PORT=port).to_dict()
        for process in plan.processes
        if process.host == host.name
    ]
    return json.dumps({"grace_period_s": plan.grace_period_s, "processes": processes}).encode() + b"\n"


def _prefixes(hosts: Sequence[Host]) -> list[str]:
    width = max(len(host.address) for host in hosts)
    return [f"[{host.address:<{width}}] " for host in hosts]


def _tell(plan: LaunchPlan, hosts: Sequence[Host], ending: RunEnding) -> int:
    ranks: list[RankEnding] = []
    num_memory_kills = 0
    lost: list[tuple[Host, ChildEnding]] = []
    for host, child in zip(hosts, ending.children, strict=True):
        message = _message(child)
        if message is None:
            lost.append((host, child))
        else:
            ranks += _rank_endings(host, message)
            num_memory_kills += message["num_memory_kills"]
    report = make_report(ranks, interrupted_by=ending.interrupted_by, num_memory_kills=num_memory_kills)
    exit_code = tell(report, is_quiet=plan.is_quiet, file=plan.report)
    if ending.interrupted_by is None:
        for host, child in lost:
            said = child.last_lines[-1] if child.last_lines else "nothing"
            complain(f"The connection to {host.name} {describe_ending(child.return_code)}; it said: {said}")
    return exit_code or max((exit_code_for_shell(child.return_code) for _, child in lost), default=0)


def _message(child: ChildEnding) -> dict[str, Any] | None:
    mark = MESSAGE_MARK.decode()
    found = [line for line in child.last_lines if line.startswith(mark)]
    return json.loads(found[-1].removeprefix(mark)) if found else None


def _rank_endings(host: Host, message: dict[str, Any]) -> list[RankEnding]:
    now = time.monotonic()
    return [
        RankEnding(
            rank["rank"],
            host.address,
            ChildEnding(
                rank["return_code"],
                None if rank["failed_ago_s"] is None else now - rank["failed_ago_s"],
                rank["was_ended"] or message["interrupted_by"] is not None,
                tuple(rank["last_lines"]),
            ),
        )
        for rank in message["ranks"]
    ]
