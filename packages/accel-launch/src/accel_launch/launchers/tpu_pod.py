"""All machines of a TPU pod from one terminal, through ``gcloud`` (``--tpu --tpu_cluster``)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar

from accel_launch.gcloud import INSTALL, PROGRAM, PYTHON_OF_PODS, on_all_workers, on_machine
from accel_launch.launchers.local import plan_programs, run_here
from accel_launch.launchers.relaunch import public_variables, relaunch_command
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.launchers.submission import require_program
from accel_launch.messages import inform
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest
from accel_state.errors import ConfigError

# Settings of the way there.
_OWN_SETTINGS = frozenset(
    {"tpu_cluster", "no_tpu_cluster", "tpu_name", "tpu_zone", "tpu_use_sudo", "tpu_vm", "report"}
)


class TPUPodLauncher(BuiltInLauncher):
    """Runs ``accel launch --tpu --no_tpu_cluster`` on each machine, in the directory of the same name there.

    Script and packages must be there already (``accel tpu-config`` brings them). What reaches the machines is the
    command line only: no file, and no variable except those of ``--env``.
    """

    name: ClassVar[str] = "tpu-pod"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        zone: str | None = request.value("tpu_zone")
        line = command_line(request)
        machines: tuple[str, ...] = request.value("tpu_vm")
        commands = (
            [on_machine(machine, line, zone=zone) for machine in machines]
            if machines
            else [on_all_workers(_name(request), line, zone=zone)]
        )
        hosts: Sequence[str] = machines or (_name(request),)
        return plan_programs(
            self.name,
            request,
            (ProcessPlan(argv, request.cwd, host=host) for host, argv in zip(hosts, commands, strict=True)),
            num_ranks=request.num_processes,
            options={"shows_command": str(request.value("debug_mode"))},
        )

    def run(self, plan: LaunchPlan) -> int:
        require_program(PROGRAM, asked_by="--tpu_cluster", otherwise=INSTALL)
        if plan.options["shows_command"] == "True":
            for process in plan.processes:
                inform(f"Running {shlex.join(process.argv)}")
        hosts = [process.host for process in plan.processes]
        width = max(len(host) for host in hosts)
        return run_here(plan, prefixes=[f"[{host:<{width}}] " for host in hosts] if len(hosts) > 1 else None)


def command_line(request: LaunchRequest) -> str:
    """Return what each machine is to run, as a line for the shell there."""
    there = relaunch_command(
        request, without=_OWN_SETTINGS, interpreter=PYTHON_OF_PODS, is_self_contained=True
    )
    launch = (*there[:4], "--no_tpu_cluster", *there[4:])
    named = public_variables(
        request.named_variables(),
        where="it would be on the command lines of `gcloud` and of the machines",
        otherwise="Write it into a file there with `accel tpu-config`, for the script to read.",
    )
    variables = [f"{name}={value}" for name, value in named.items()]
    words = (
        *(["sudo"] if request.value("tpu_use_sudo") else []),
        *(["env", *variables] if variables else []),
        *launch,
    )
    return f"cd {shlex.quote(str(request.cwd))} && {shlex.join(words)}"


def _name(request: LaunchRequest) -> str:
    name: str | None = request.value("tpu_name")
    if not name:
        raise ConfigError(
            "`--tpu_cluster` needs `--tpu_name`, the name of the pod, or `--vm` for each of its machines; they may "
            "stand in the config file too."
        )
    return name
