"""Settings of a run on several machines, and of starting the ranks again."""

from __future__ import annotations

from accel_launch.tables.parsers import pairs
from accel_state.environment import Setting
from accel_state.environment.parsers import boolean, count, duration, index, text

TITLE = "several machines"

SETTINGS = (
    Setting(
        "num_machines",
        "",
        count,
        1,
        "Number of machines.",
        flag="--num_machines",
        config_key="num_machines",
    ),
    Setting(
        "machine_rank",
        "",
        index,
        0,
        "Place of this machine among them; 0 is where the ranks meet.",
        flag="--machine_rank",
        config_key="machine_rank",
    ),
    Setting(
        "same_network",
        "",
        boolean,
        True,
        "All machines are on one local network; where a config file says they are not, they meet by `c10d`.",
        flag="--same_network",
        config_key="same_network",
    ),
    Setting(
        "rdzv_backend",
        "",
        text,
        "static",
        "How the machines find each other, such as `static` or `c10d`.",
        flag="--rdzv_backend",
        config_key="rdzv_backend",
    ),
    Setting(
        "rdzv_id",
        "",
        text,
        None,
        "Name of the job on all its machines. Default: the scheduler's number, or made of user and command.",
        flag="--rdzv_id",
    ),
    Setting(
        "rdzv_conf",
        "",
        pairs,
        None,
        "Further settings of how they find each other, as `KEY=VALUE,KEY=VALUE`.",
        flag="--rdzv_conf",
    ),
    Setting(
        "max_restarts",
        "",
        index,
        0,
        "How often all ranks start again after one of them has failed.",
        flag="--max_restarts",
    ),
    Setting(
        "monitor_interval",
        "",
        duration,
        0.1,
        "Seconds between two looks for machines that want to start again, where machines meet by `--rdzv_backend`.",
        flag="--monitor_interval",
    ),
    Setting(
        "role",
        "",
        text,
        "default",
        "Name of the workers' role.",
        flag="--role",
    ),
)
