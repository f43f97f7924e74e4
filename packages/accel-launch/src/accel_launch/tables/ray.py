"""Settings of a launch on Ray."""

from __future__ import annotations

from accel_launch.tables.parsers import pairs
from accel_state.environment import Setting
from accel_state.environment.parsers import count, duration, text

TITLE = "Ray"

SETTINGS = (
    Setting(
        "ray_address",
        "RAY_ADDRESS",
        text,
        None,
        "Ray cluster to run on, such as `10.0.0.1:6379`; without one, a cluster on this machine is started for "
        "the run.",
        flag="--ray_address",
        config_key="ray_config.ray_address",
    ),
    Setting(
        "ray_cpus_per_process",
        "",
        count,
        1,
        "CPUs that Ray reserves for each process; beside them one GPU each, unless `--cpu` is given.",
        flag="--ray_cpus_per_process",
        config_key="ray_config.ray_cpus_per_process",
    ),
    Setting(
        "ray_resources",
        "",
        pairs,
        None,
        "Further resources for each process, such as `accelerator_type:A100=0.001`.",
        flag="--ray_resources",
        config_key="ray_config.ray_resources",
    ),
    Setting(
        "ray_runtime_env",
        "",
        text,
        None,
        "YAML or JSON file with Ray's `runtime_env`; with a `working_dir` there, the processes run in its copy.",
        flag="--ray_runtime_env",
        config_key="ray_config.ray_runtime_env",
    ),
    Setting(
        "ray_wait_s",
        "",
        duration,
        300.0,
        "Seconds to wait until the cluster has room for all processes.",
        flag="--ray_wait_s",
        config_key="ray_config.ray_wait_s",
    ),
)
