"""Who starts the processes."""

from __future__ import annotations

from accel_state.environment import Setting
from accel_state.environment.parsers import text

TITLE = "who starts the processes"
# The first launcher that accepts the launch.
AUTO = "auto"

SETTINGS = (
    Setting(
        "launcher",
        "ACCEL_LAUNCHER",
        text,
        AUTO,
        "Launcher to use, such as `ray` or `kubernetes`; `auto` takes the first that accepts the launch, those of "
        "other packages before our own.",
        flag="--launcher",
        config_key="launcher",
    ),
)
