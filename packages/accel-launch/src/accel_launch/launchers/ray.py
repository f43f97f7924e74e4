"""Ranks as actors of a Ray cluster (``--launcher ray``)."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from accel_launch.config.file import read_mapping
from accel_launch.launchers.local import asked_port, plan_programs
from accel_launch.launchers.relaunch import forwarded_to_images
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.child import exit_code_for_shell
from accel_launch.processes.supervision import run_processes
from accel_launch.remote_protocol import FOLDER_THERE, PYTHON_THERE, Endings, Order
from accel_launch.report import tell
from accel_launch.request import LaunchRequest, interpreter_command, variables_of_outer_run
from accel_state.environment import snapshot
from accel_state.errors import ConfigError, NotAvailableError

# Beyond the time that the ranks have: for the way to the nodes and back, and for the cluster to end.
_SLACK_S = 15.0
_NODE = "a node of the Ray cluster"


class RayLauncher(BuiltInLauncher):
    """Reserves room for all ranks in a placement group, and starts each in an actor.

    The nodes need accel-launch, and the script at the same path, unless Ray's `runtime_env` brings them.
    """

    name: ClassVar[str] = "ray"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        address: str | None = request.value("ray_address")
        if address is not None and address.startswith("ray://"):
            raise ConfigError(
                f"`--ray_address` is `{address}`, but ranks cannot be started through Ray's client. Give the address "
                "of the head node, such as `10.0.0.1:6379`, from a machine that can reach it."
            )
        resources = _resources(request)
        num_ranks = _num_ranks(request)
        runtime_env = _runtime_env(request)
        brings_files = "working_dir" in runtime_env
        there = replace(request, interpreter=(PYTHON_THERE, *request.interpreter[1:]))
        threads = request.value("num_cpu_threads_per_process") or int(resources["CPU"])
        environ = forwarded_to_images(request.machine.environ) | {"OMP_NUM_THREADS": str(threads)}
        processes = (
            ProcessPlan(
                there.program(),
                Path(FOLDER_THERE) if brings_files else request.cwd,
                environ | request.environ() | {"RANK": str(rank), "WORLD_SIZE": str(num_ranks)},
                variables_of_outer_run(request.machine.environ),
                host=_NODE,
                rank=rank,
            )
            for rank in range(num_ranks)
        )
        return plan_programs(
            self.name,
            request,
            processes,
            num_ranks=num_ranks,
            port=asked_port(request) or None,
            options={
                "address": address or "",
                "resources": json.dumps(resources),
                "num_machines": str(request.num_machines),
                "wait_s": str(request.value("ray_wait_s")),
            },
            secrets={"runtime_env": json.dumps(runtime_env)},
        )

    def run(self, plan: LaunchPlan) -> int:
        if find_spec("ray") is None:
            raise NotAvailableError(
                "`--launcher ray` needs the package `ray`, which is not installed. Run `pip install ray`."
            )
        ending = run_processes(
            [ProcessPlan((*interpreter_command(), "-P", "-m", "accel_launch.ray_driver"), Path.cwd())],
            host_environ=snapshot(),
            grace_period_s=plan.grace_period_s + _SLACK_S,
            orders=[lambda attempt: _order(plan)],
            restarts=Restarts(is_by_line=True),
        )
        (driver,) = ending.children
        endings = Endings.last_in(driver.last_lines)
        if endings is None:  # no rank was started, and the driver has said why
            code = exit_code_for_shell(driver.return_code)
            return code if ending.interrupted_by is None else 128 + ending.interrupted_by
        return tell(
            plan,
            endings.ranks,
            interrupted_by=ending.interrupted_by,
            num_memory_kills=endings.num_memory_kills,
        )


def _resources(request: LaunchRequest) -> dict[str, float]:
    """Return what Ray reserves for each rank."""
    has_gpu = not request.value("use_cpu") and bool(request.value("ray_address") or request.machine.gpus)
    resources: dict[str, float] = {"CPU": request.value("ray_cpus_per_process")}
    if has_gpu:
        resources["GPU"] = 1
    for pair in filter(None, (request.value("ray_resources") or "").split(",")):
        name, _, amount = pair.partition("=")
        try:
            resources[name] = float(amount)
        except ValueError:
            raise ConfigError(
                f"`--ray_resources` has `{pair}`, but an amount must be a number, as in `{name}=1`."
            ) from None
    return resources


def _num_ranks(request: LaunchRequest) -> int:
    if request.value("num_processes") is None and request.value("ray_address"):
        raise ConfigError(
            "`--launcher ray` needs `--num_processes`: the GPUs of this machine say nothing of those of the cluster "
            f"`{request.value('ray_address')}`."
        )
    return request.num_processes


def _runtime_env(request: LaunchRequest) -> dict[str, Any]:
    asked: str | None = request.value("ray_runtime_env")
    return (
        {} if asked is None else read_mapping(request.cwd / asked, what=f"The `--ray_runtime_env` `{asked}`")
    )


def _order(plan: LaunchPlan) -> bytes:
    cluster = {
        "address": plan.options["address"],
        "resources": json.loads(plan.options["resources"]),
        "num_machines": int(plan.options["num_machines"]),
        "wait_s": float(plan.options["wait_s"]),
        "runtime_env": json.loads(plan.secrets["runtime_env"]),
        "port": plan.port,
    }
    return json.dumps(cluster).encode() + b"\n" + Order(plan.processes, plan.grace_period_s).encode()
