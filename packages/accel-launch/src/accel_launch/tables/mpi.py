"""Settings of a start through mpirun."""

from __future__ import annotations

from accel_state.environment import Setting
from accel_state.environment.parsers import boolean, count, text

TITLE = "MPI"

SETTINGS = (
    Setting(
        "use_mpirun",
        "",
        boolean,
        False,
        "Start the processes with `mpirun`.",
        flag="--use_mpirun",
    ),
    Setting(
        "mpirun_hostfile",
        "",
        text,
        None,
        "File that tells `mpirun` the machines.",
        flag="--mpirun_hostfile",
        config_key="mpirun_config.mpirun_hostfile",
    ),
    Setting(
        "mpirun_ccl",
        "",
        count,
        1,
        "Number of oneCCL worker threads.",
        flag="--mpirun_ccl",
        config_key="mpirun_config.mpirun_ccl",
    ),
)
