"""Settings of how a run is watched and ended, and of what is kept of its output."""

from __future__ import annotations

from accel_state.environment import Setting
from accel_state.environment.parsers import number, text

TITLE = "watching"

SETTINGS = (
    Setting(
        "tee",
        "",
        text,
        None,
        "Output to write to files and to the terminal: 0 none, 1 stdout, 2 stderr, 3 both, or `RANK:N,RANK:N`.",
        flag="--tee",
    ),
    Setting(
        "log_dir",
        "",
        text,
        None,
        "Folder for these files.",
        flag="--log_dir",
    ),
    Setting(
        "grace_period_s",
        "",
        number,
        30.0,
        "Seconds that processes are given to end before they are killed.",
        flag="--grace_period_s",
    ),
    Setting(
        "report",
        "",
        text,
        None,
        "File to write the report of a failure to, as JSON.",
        flag="--report",
    ),
)
