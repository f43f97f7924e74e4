"""The accel command: start one PyTorch script anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_launch.cli import main as main
    from accel_launch.commands.parsing import get_config_parser as get_config_parser
    from accel_launch.commands.parsing import launch_command as launch_command
    from accel_launch.commands.parsing import launch_command_parser as launch_command_parser
    from accel_launch.config.basic import write_basic_config as write_basic_config
    from accel_launch.config.objects import ClusterConfig as ClusterConfig
    from accel_launch.config.objects import SageMakerConfig as SageMakerConfig
    from accel_launch.config.objects import load_config_from_file as load_config_from_file
    from accel_launch.launchers.protocol import Launcher as Launcher
    from accel_launch.notebook import debug_launcher as debug_launcher
    from accel_launch.notebook import notebook_launcher as notebook_launcher
    from accel_launch.plan import LaunchPlan as LaunchPlan
    from accel_launch.plan import ProcessPlan as ProcessPlan
    from accel_launch.request import LaunchRequest as LaunchRequest

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ClusterConfig": "accel_launch.config.objects",
        "LaunchPlan": "accel_launch.plan",
        "LaunchRequest": "accel_launch.request",
        "Launcher": "accel_launch.launchers.protocol",
        "ProcessPlan": "accel_launch.plan",
        "SageMakerConfig": "accel_launch.config.objects",
        "debug_launcher": "accel_launch.notebook",
        "get_config_parser": "accel_launch.commands.parsing",
        "launch_command": "accel_launch.commands.parsing",
        "launch_command_parser": "accel_launch.commands.parsing",
        "load_config_from_file": "accel_launch.config.objects",
        "main": "accel_launch.cli",
        "notebook_launcher": "accel_launch.notebook",
        "write_basic_config": "accel_launch.config.basic",
    },
)
