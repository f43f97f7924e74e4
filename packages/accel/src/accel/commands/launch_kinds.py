"""Launches of one kind, from the arguments of ``accel launch`` parsed elsewhere."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accel.commands.config.objects import ClusterConfig, SageMakerConfig, load_config_from_file
from accel.commands.parsing import launch_command
from accel_launch.commands.launch import plan_of, request_of
from accel_launch.launchers.selection import select_launcher
from accel_launch.launchers.tpu import xla_variables
from accel_launch.sagemaker.job import job_of
from accel_state.environment import snapshot


def prepare_simple_launcher_cmd_env(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return the command that a launch starts first, and its whole environment; nothing is started.

    Args:
        args: What `launch_command_parser` has parsed.

    Raises:
        ConfigError: If the settings contradict each other.
    """
    request = request_of(args)
    process = plan_of(request, select_launcher(request)).processes[0]
    return list(process.argv), process.environ_on(snapshot())


def validate_launch_command(
    args: argparse.Namespace,
) -> tuple[argparse.Namespace, ClusterConfig | SageMakerConfig | None, bool]:
    """Complete the arguments of a launch with what variables and the config file say; nothing is started.

    Args:
        args: What `launch_command_parser` has parsed; it is changed.

    Returns:
        The arguments, the content of the config file if there is one, and whether it sets the precision.

    Raises:
        ConfigError: If the settings contradict each other.
    """
    request = request_of(args)
    for name, found in request.settings.items():
        if found.source != "default" and hasattr(args, name):
            setattr(args, name, found.value)
    args.num_processes, args.num_machines = request.num_processes, request.num_machines
    args.machine_rank, args.mixed_precision = request.machine_rank, request.value("mixed_precision")
    if request.engine in _SWITCHES:
        setattr(args, _SWITCHES[request.engine], True)
    has_file = request.config.path is not None
    return (
        args,
        load_config_from_file(args.config_file) if has_file else None,
        request.settings["mixed_precision"].source == "config file",
    )


_SWITCHES = {"FSDP": "use_fsdp", "DEEPSPEED": "use_deepspeed", "MEGATRON_LM": "use_megatron_lm"}


def prepare_multi_gpu_env(args: argparse.Namespace) -> dict[str, str]:
    """Return the whole environment of a launch on several GPUs; see `prepare_simple_launcher_cmd_env`."""
    args.multi_gpu = True
    return prepare_simple_launcher_cmd_env(args)[1]


def prepare_deepspeed_cmd_env(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return the command and environment of a launch with DeepSpeed; see `prepare_simple_launcher_cmd_env`.

    On several machines the command is DeepSpeed's runner, which starts the ranks; on one it is rank 0.
    """
    args.use_deepspeed = True
    return prepare_simple_launcher_cmd_env(args)


def prepare_tpu(
    args: argparse.Namespace, current_env: dict[str, str], pod: bool = False
) -> tuple[argparse.Namespace, dict[str, str]]:
    """Return the arguments of a launch on a TPU, and ``current_env`` with what XLA reads; nothing is started.

    Args:
        args: What `launch_command_parser` has parsed; it is changed.
        current_env: Variables, which come before those of XLA.
        pod: The TPU has several machines.
    """
    args.tpu = True
    if pod:
        args.tpu_cluster = True
    return args, xla_variables(request_of(args)) | current_env


def simple_launcher(args: argparse.Namespace) -> None:
    """Launch what the parser of `launch_command_parser` found, and wait for its end.

    Raises:
        SystemExit: If the run fails, with its exit code.
        AccelError: If it cannot be started.
    """
    launch_command(args)


def multi_gpu_launcher(args: argparse.Namespace) -> None:
    """Launch on several GPUs, and wait for the end; see `simple_launcher`."""
    args.multi_gpu = True
    launch_command(args)


def deepspeed_launcher(args: argparse.Namespace) -> None:
    """Launch with DeepSpeed, and wait for the end; see `simple_launcher`."""
    args.use_deepspeed = True
    launch_command(args)


def tpu_launcher(args: argparse.Namespace) -> None:
    """Launch on the TPU of this machine, and wait for the end; see `simple_launcher`."""
    args.tpu = True
    launch_command(args)


def tpu_pod_launcher(args: argparse.Namespace) -> None:
    """Launch on all machines of a TPU pod, and wait for the end; see `simple_launcher`."""
    args.tpu = args.tpu_cluster = True
    launch_command(args)


def prepare_sagemager_args_inputs(
    sagemaker_config: SageMakerConfig, args: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, str] | None]:
    """Return the arguments of Amazon's estimator, and the inputs of its `fit` by channel; nothing is submitted.

    Args:
        sagemaker_config: Stands in for the config file.
        args: What `launch_command_parser` has parsed.

    Raises:
        ConfigError: If a setting is missing, or SageMaker does not support it.
    """
    with _config_file(sagemaker_config, args) as with_file:
        job = job_of(request_of(with_file))
    return job["estimator"], job["fit"].get("inputs")


def sagemaker_launcher(sagemaker_config: SageMakerConfig, args: argparse.Namespace) -> None:
    """Run a job on SageMaker, and wait for its end; see `simple_launcher` and `prepare_sagemager_args_inputs`."""
    with _config_file(sagemaker_config, args) as with_file:
        launch_command(with_file)


@contextmanager
def _config_file(config: SageMakerConfig, args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """Yield the arguments with ``config`` as their config file."""
    with tempfile.TemporaryDirectory(prefix="accel-sagemaker-") as folder:
        file = str(Path(folder, "config.yaml"))
        config.to_yaml_file(file)
        yield argparse.Namespace(**{**vars(args), "config_file": file})
