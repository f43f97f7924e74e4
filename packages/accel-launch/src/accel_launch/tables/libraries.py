"""Settings of what the libraries of a script find."""

from __future__ import annotations

from accel_state.environment import Setting
from accel_state.environment.parsers import boolean

TITLE = "libraries"

SETTINGS = (
    Setting(
        "drop_in",
        "",
        boolean,
        False,
        "Let `import accelerate` mean accel in the script and in all libraries that it uses.",
        flag="--drop_in",
    ),
)
