"""Settings of DeepSpeed's own launchers."""

from __future__ import annotations

from accel_state.environment import Setting
from accel_state.environment.parsers import choice, text

TITLE = "DeepSpeed on several machines"

SETTINGS = (
    Setting(
        "deepspeed_hostfile",
        "",
        text,
        None,
        "File with the machines, in the form of DeepSpeed's `hostfile`.",
        flag="--deepspeed_hostfile",
        config_key="deepspeed_config.deepspeed_hostfile",
    ),
    Setting(
        "deepspeed_exclusion_filter",
        "",
        text,
        None,
        "Machines and GPUs to leave out, such as `worker-0:1@worker-1`.",
        flag="--deepspeed_exclusion_filter",
        config_key="deepspeed_config.deepspeed_exclusion_filter",
    ),
    Setting(
        "deepspeed_inclusion_filter",
        "",
        text,
        None,
        "Machines and GPUs to use, such as `worker-0:1@worker-1`.",
        flag="--deepspeed_inclusion_filter",
        config_key="deepspeed_config.deepspeed_inclusion_filter",
    ),
    Setting(
        "deepspeed_multinode_launcher",
        "",
        choice("pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"),
        "pdsh",
        "How the machines are reached.",
        flag="--deepspeed_multinode_launcher",
        config_key="deepspeed_config.deepspeed_multinode_launcher",
    ),
)
