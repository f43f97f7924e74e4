"""Settings of how a run is watched and ended, and of what is kept of its output."""

from __future__ import annotations

from accel_launch.tables.parsers import tee
from accel_state.environment import Setting
from accel_state.environment.parsers import duration, text

TITLE = "watching"

SETTINGS = (
    Setting(
        "tee",
        "",
        tee,
        None,
        "Output to write to files and to the terminal: 0 none, 1 stdout, 2 stderr, 3 both, or `RANK:N,RANK:N`.",
        flag="--tee",
    ),
    Setting(
        "log_dir",
        "",
        text,
        None,
        "Folder for these files. Default: a temporary one.",
        flag="--log_dir",
    ),
    Setting(
        "grace_period_s",
        "",
        duration,
        30.0,
        "Seconds that processes are given to end before they are killed.",
        flag="--grace_period_s",
    ),
    Setting(
        "report",
        "",
        text,
        None,
        "File to write the report of a failure to, as JSON; where each machine has its own `--machine_rank` or is "
        "a SLURM node, machine 1 writes `FILE.machine-1.json` for `FILE.json`, and so on.",
        flag="--report",
    ),
)
