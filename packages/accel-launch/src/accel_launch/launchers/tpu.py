"""The ranks of a TPU VM, through PyTorch/XLA (``--tpu``)."""

from __future__ import annotations

from typing import ClassVar

from accel_launch.launchers.local import plan_programs, run_here
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest, variables_of_outer_run
from accel_state.errors import ConfigError


class TPULauncher(BuiltInLauncher):
    """Starts one process that imports `torch_xla`, which starts a rank for each device of this machine.

    Each rank imports the script and calls its ``--main_training_function``.
    """

    name: ClassVar[str] = "tpu"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        if request.kind == "executable":
            raise ConfigError(
                "`--no_python` cannot go with `--tpu`: the ranks import a Python script and call a function of it. "
                "Leave it out, and name a `.py` file."
            )
        asked: int | None = request.value("num_processes")
        process = ProcessPlan(
            argv=(
                *request.interpreter,
                "-u",
                "-P",  # a `torch.py` next to the script is not torch
                "-m",
                "accel_launch.xla_spawn",
                f"--function={request.value('main_training_function')}",
                *([] if asked is None else [f"--num-processes={asked}"]),
                *(["--module"] if request.kind == "module" else []),
                "--",
                *request.command,
            ),
            cwd=request.cwd,
            environ=xla_variables(request) | request.environ(),
            unset=variables_of_outer_run(request.machine.environ),
        )
        return plan_programs(self.name, request, [process], num_ranks=asked or 0)

    def run(self, plan: LaunchPlan) -> int:
        return run_here(plan)


def xla_variables(request: LaunchRequest) -> dict[str, str]:
    """Return what the XLA runtime reads: its device, and whether floats are stored in bf16."""
    found = {} if request.machine.environ.get("PJRT_DEVICE") else {"PJRT_DEVICE": "TPU"}
    if request.value("mixed_precision") == "bf16" and request.value("downcast_bf16"):
        found["XLA_DOWNCAST_BF16"] = "1"
    return found
