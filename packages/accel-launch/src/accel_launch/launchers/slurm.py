"""A batch job for SLURM: its script, printed with ``--dry-run`` or submitted (``--slurm``)."""

from __future__ import annotations

import math
import re
import shlex
from typing import ClassVar

from accel_launch.launchers.relaunch import relaunch_command
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.launchers.submission import submit
from accel_launch.messages import show
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest
from accel_state.errors import ConfigError

_OWN_SETTINGS = ("slurm", "slurm_options", "slurm_array", "slurm_requeue", "num_machines")
_ARRAY = re.compile(r"[\d,:-]+(%\d+)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# What the end of a job takes beyond the time that the ranks are given to save.
_END_S = 30

# SLURM sends the batch script a SIGTERM before a job ends. The launcher hands it on, the ranks may save, and then
# the job queues again under its own number; so it does when the script asks for it by its exit code
# (`handle_preemption`). The number of an array's last task is that of the array, hence the longer name.
_REQUEUE = """\
job="$SLURM_JOB_ID"
[ -z "$SLURM_ARRAY_JOB_ID" ] || job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
put_back() {
    trap '' TERM
    scontrol requeue "$job"
    exit 143
}
end() {
    kill -TERM "$launcher" 2>/dev/null
    wait "$launcher"
    put_back
}
trap end TERM
%s &
launcher=$!
wait "$launcher"
code=$?
[ "$code" -ne 75 ] || put_back
exit "$code"
"""


class SLURMLauncher(BuiltInLauncher):
    """Hands a batch script to ``sbatch``; in the job, `accel launch` finds its nodes."""

    name: ClassVar[str] = "slurm"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        return LaunchPlan(
            self.name,
            (ProcessPlan(("sbatch", "--parsable"), request.cwd),),
            num_ranks=request.num_processes,
            grace_period_s=request.value("grace_period_s"),
            options={"script": batch_script(request)},
            shown_option="script",
        )

    def run(self, plan: LaunchPlan) -> int:
        (sbatch,) = plan.processes
        answer = submit(
            sbatch,
            plan.options["script"],
            asked_by="--slurm",
            otherwise="Run it on a login node of the cluster, or see the script with `--dry-run`.",
        )
        show(f"Submitted batch job {answer.partition(';')[0]}")
        return 0


def batch_script(request: LaunchRequest) -> str:
    """Return the script of the job."""
    head = {
        "job-name": request.command[0].rpartition("/")[2],
        "nodes": str(request.num_machines),
        "ntasks-per-node": "1",
        "chdir": str(request.cwd),
    }
    array: str | None = request.value("slurm_array")
    if array is not None:
        if _ARRAY.fullmatch(array) is None:
            raise ConfigError(
                f"`--slurm_array` is `{array}`, but it must look like `0-9`, `1,3,5` or `0-9%2`."
            )
        head["array"] = array
    requeues = bool(request.value("slurm_requeue"))
    options = shlex.split(request.value("slurm_options") or "")
    given = {"the script's name": head["job-name"], "the working directory": head["chdir"]}
    for what, text in [*given.items(), *(("`--slurm_options`", option) for option in options)]:
        if _CONTROL.search(text):  # a comment of the shell ends with its line, quoted or not
            raise ConfigError(
                f"A line of the batch script has {what} in it, so a control character, such as a line end, cannot be "
                f"there ({text!r}). Take it out."
            )
    lines = [f"#SBATCH --{name}={shlex.quote(value)}" for name, value in head.items()]
    if requeues:
        # `B:` sends it to the batch script, before the end of the job's time or when it is preempted.
        lead_s = math.ceil(request.value("grace_period_s")) + _END_S
        lines += ["#SBATCH --requeue", "#SBATCH --open-mode=append", f"#SBATCH --signal=B:TERM@{lead_s}"]
    lines += [f"#SBATCH {shlex.quote(option)}" for option in options]
    command = shlex.join(relaunch_command(request, without=_OWN_SETTINGS))
    body = _REQUEUE % command if requeues else f"exec {command}\n"
    return "#!/bin/bash\n" + "\n".join(lines) + "\n\n" + body
