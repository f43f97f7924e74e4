"""Settings of a job for SLURM."""

from __future__ import annotations

from accel_launch.tables.parsers import shell_words
from accel_state.environment import Setting
from accel_state.environment.parsers import boolean, text

TITLE = "SLURM"

SETTINGS = (
    Setting(
        "slurm",
        "",
        boolean,
        False,
        "Submit a batch job instead of starting here; with --dry-run print its script.",
        flag="--slurm",
    ),
    Setting(
        "slurm_options",
        "",
        shell_words,
        None,
        "Further options for `sbatch`, as in `--slurm_options='--partition=gpu --time=1:00:00'`.",
        flag="--slurm_options",
    ),
    Setting(
        "slurm_array",
        "",
        text,
        None,
        "Job array to submit, such as `0-9%2`.",
        flag="--slurm_array",
    ),
    Setting(
        "slurm_requeue",
        "",
        boolean,
        False,
        "Put the job into the queue again when it is about to be ended.",
        flag="--slurm_requeue",
    ),
)
