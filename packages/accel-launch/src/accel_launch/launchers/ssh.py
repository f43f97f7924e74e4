"""Several machines from one terminal, over ssh (``--hosts``, ``--hostfile``)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from accel_launch.launchers.hosts import Host, hosts_of, num_ranks_on_each
from accel_launch.launchers.local import check_shown_ranks, output_settings, plan_programs, rank_variables
from accel_launch.launchers.preflight import check_hosts, ssh_command
from accel_launch.launchers.relaunch import library_variables
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.launchers.submission import require_program
from accel_launch.messages import complain, escaped
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.child import ChildEnding, describe_ending
from accel_launch.processes.supervision import RunEnding, run_processes
from accel_launch.remote_protocol import Endings, Order
from accel_launch.report import tell
from accel_launch.request import LaunchRequest, interpreter_command
from accel_state.environment import snapshot
from accel_state.errors import LaunchError

# Beyond the time the hosts give their ranks, for the way there and back.
_SLACK_S = 3.0


class SSHLauncher(BuiltInLauncher):
    """Starts a small program on each host, which gets its part of the plan and runs the ranks there."""

    name: ClassVar[str] = "ssh"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        hosts = hosts_of(request)
        meeting = request.settings["master_addr"]
        # A variable of the shell may be that of a run before.
        address = meeting.value if meeting.source in ("flag", "config file") else hosts[0].address
        port = request.settings["master_port"]
        environ = request.environ() | {"MASTER_ADDR": address}
        plan = plan_programs(
            self.name,
            request,
            (ProcessPlan(request.program(), request.cwd, environ, host=host.name) for host in hosts),
            num_ranks=0,
            port=(port.value if port.source in ("flag", "config file") else None) or None,
            options={
                "ssh_options": request.value("ssh_options") or "",
                "script": request.command[0] if request.kind == "script" else "",
                "use_cpu": _flag(request.value("use_cpu")),
                "share_gpus": _flag(request.value("share_gpus")),
                "no_preflight": _flag(request.value("no_preflight")),
                "role": request.value("role"),
            },
            secrets=library_variables(request.machine.environ),
            **output_settings(request),
        )
        num_on_each = num_ranks_on_each(request, hosts)
        return plan if num_on_each is None else _with_ranks(plan, num_on_each)

    def run(self, plan: LaunchPlan) -> int:
        require_program("ssh", asked_by="--hosts", otherwise="Install OpenSSH's client.")
        hosts = [Host(name) for name in dict.fromkeys(process.host for process in plan.processes)]
        options = shlex.split(plan.options["ssh_options"])
        interpreter = interpreter_command()
        answers = check_hosts(
            hosts,
            options=options,
            interpreter=interpreter,
            cwd=plan.processes[0].cwd,
            script=plan.options["script"] or None,
            is_compared=not plan.options["no_preflight"],
        )
        plan = _fitting(
            plan, {host.name: told["num_accelerators"] for host, told in zip(hosts, answers, strict=True)}
        )
        port = str(plan.port or answers[0]["free_port"])
        node = (*interpreter, "-P", "-m", "accel_launch.remote_node")
        ending = run_processes(
            [ProcessPlan(ssh_command(host, options, node), Path.cwd()) for host in hosts],
            host_environ=snapshot(),
            grace_period_s=plan.grace_period_s + _SLACK_S,
            prefixes=_prefixes(hosts),
            orders=[partial(_order, plan, host, port) for host in hosts],
            restarts=Restarts(plan.max_restarts),
        )
        return _tell(plan, hosts, ending)


def _flag(is_on: bool) -> str:
    return "true" if is_on else ""


def _with_ranks(plan: LaunchPlan, num_on_each: int) -> LaunchPlan:
    """Return a plan of one process for each host with ``num_on_each`` ranks in its place."""
    num_hosts = len(plan.processes)
    ranks = [
        replace(
            process,
            rank=host * num_on_each + local_rank,
            environ={
                **rank_variables(
                    rank=host * num_on_each + local_rank,
                    world_size=num_hosts * num_on_each,
                    local_rank=local_rank,
                    local_world_size=num_on_each,
                    machine_rank=host,
                    num_machines=num_hosts,
                    role=plan.options["role"],
                    max_restarts=plan.max_restarts,
                ),
                **process.environ,
            },
        )
        for host, process in enumerate(plan.processes)
        for local_rank in range(num_on_each)
    ]
    return replace(plan, processes=tuple(ranks), num_ranks=len(ranks))


def _fitting(plan: LaunchPlan, num_accelerators: Mapping[str, int]) -> LaunchPlan:
    """Return the plan with as many ranks on each host as it has accelerators, unless that is decided.

    Raises:
        LaunchError: If hosts differ in that number, or have fewer accelerators than they are to run ranks.
    """
    told = ", ".join(f"{host}: {number}" for host, number in num_accelerators.items())
    if plan.num_ranks == 0:
        if len(set(num_accelerators.values())) > 1:
            raise LaunchError(
                f"The hosts differ in their number of accelerators ({told}), and all must run the same number of "
                "processes. Say how many with `--num_processes`, which counts those of all hosts."
            )
        plan = check_shown_ranks(_with_ranks(plan, max(1, *num_accelerators.values())))
    num_on_each = plan.num_ranks // len(num_accelerators)
    is_shared = plan.options["use_cpu"] or plan.options["share_gpus"]
    if not is_shared and any(0 < number < num_on_each for number in num_accelerators.values()):
        raise LaunchError(
            f"Each host is to run {num_on_each} processes, but that is more than there are accelerators ({told}). "
            "Ask for fewer, or add `--cpu` or, for tests, `--share_gpus`."
        )
    return plan


def _order(plan: LaunchPlan, host: Host, port: str, attempt: int) -> bytes:
    """Return what the host gets through the connection."""
    processes = tuple(
        replace(process, private={**plan.secrets, **process.private, "MASTER_PORT": port})
        for process in plan.processes
        if process.host == host.name
    )
    use_cpu = bool(plan.options["use_cpu"])
    order = Order(processes, plan.grace_period_s, use_cpu, attempt, plan.prefix, plan.shown_ranks, plan.logs)
    return order.encode()


def _prefixes(hosts: Sequence[Host]) -> list[str]:
    width = max(len(host.address) for host in hosts)
    return [f"[{host.address:<{width}}] " for host in hosts]


def _tell(plan: LaunchPlan, hosts: Sequence[Host], ending: RunEnding) -> int:
    ranks: list[ChildEnding] = []
    num_memory_kills = 0
    lost: list[tuple[Host, ChildEnding]] = []
    for host, child in zip(hosts, ending.children, strict=True):
        endings = Endings.last_in(child.last_lines)
        if endings is None:
            lost.append((host, child))
            code, at = child.return_code or 255, child.failed_at or 0.0
            on_host = [each.rank or 0 for each in plan.processes if each.host == host.name] or [0]
            ranks += [
                replace(child, return_code=code, failed_at=at, rank=rank, host=host.address)
                for rank in on_host
            ]
        else:
            ranks += [replace(rank, host=host.address) for rank in endings.ranks]
            num_memory_kills += endings.num_memory_kills
    exit_code = tell(plan, ranks, interrupted_by=ending.interrupted_by, num_memory_kills=num_memory_kills)
    if ending.interrupted_by is None:
        for host, child in lost:
            said = escaped(child.last_lines[-1]) if child.last_lines else "nothing"
            complain(f"The connection to {host.name} {describe_ending(child.return_code)}; it said: {said}")
    return exit_code
