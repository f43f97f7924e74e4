"""Hand a job to the program of a scheduler, such as `sbatch` or `kubectl`."""

from __future__ import annotations

import shutil
import subprocess

from accel_launch.plan import ProcessPlan
from accel_state.environment import snapshot
from accel_state.errors import LaunchError, NotAvailableError

_TIMEOUT_S = 120


def require_program(name: str, *, asked_by: str, otherwise: str) -> None:
    """Raise ``NotAvailableError`` unless the program ``name`` is on the ``PATH``; see `submit`."""
    if shutil.which(name, path=snapshot().get("PATH")) is None:
        raise NotAvailableError(
            f"`{asked_by}` needs the program `{name}`, which is not installed here. {otherwise}"
        )


def submit(program: ProcessPlan, job: str, *, asked_by: str, otherwise: str) -> str:
    """Return the output of ``program``, which reads ``job`` from its standard input.

    Args:
        program: What to run.
        job: The text of the job.
        asked_by: The flag that needs the program, for errors.
        otherwise: A hint for users without the program, in a sentence.

    Raises:
        NotAvailableError: If the program is not installed.
        LaunchError: If it refuses the job, or does not answer.
    """
    name = program.argv[0]
    require_program(name, asked_by=asked_by, otherwise=otherwise)
    try:
        done = subprocess.run(
            program.argv,
            input=job,
            cwd=program.cwd,
            env=program.environ_on(snapshot()),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"`{name}` did not answer within {_TIMEOUT_S} s, so it is not known whether it has taken the job. Look "
            "whether the job is there before you submit it again."
        ) from error
    if done.returncode != 0:
        raise LaunchError(f"`{name}` refused the job: {done.stderr.strip()}")
    return done.stdout.strip()
