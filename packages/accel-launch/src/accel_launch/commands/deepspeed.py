"""A launch with DeepSpeed, from the arguments of ``accel launch`` parsed elsewhere."""

from __future__ import annotations

import argparse

from accel_launch.commands.launch import request_of
from accel_launch.commands.parsing import launch_command
from accel_launch.launchers.selection import select_launcher
from accel_state.environment import snapshot


def prepare_deepspeed_cmd_env(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return the command that a launch with DeepSpeed starts first, and its whole environment; nothing is started.

    On several machines it is DeepSpeed's runner, which starts the ranks; on one it is rank 0.

    Args:
        args: What `launch_command_parser` has parsed.

    Raises:
        ConfigError: If the settings contradict each other.
    """
    args.use_deepspeed = "true"
    request = request_of(args)
    process = select_launcher(request).plan(request).processes[0]
    return list(process.argv), process.environ_on(snapshot())


def deepspeed_launcher(args: argparse.Namespace) -> None:
    """Launch what the parser of `launch_command_parser` found with DeepSpeed, and wait for its end.

    Raises:
        SystemExit: If the run fails, with its exit code.
        AccelError: If it cannot be started; DeepSpeed is not installed, for one.
    """
    args.use_deepspeed = "true"
    launch_command(args)
