"""The accel command: start one PyTorch script anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_launch.cli import main as main
    from accel_launch.commands.launch_kinds import deepspeed_launcher as deepspeed_launcher
    from accel_launch.commands.launch_kinds import multi_gpu_launcher as multi_gpu_launcher
    from accel_launch.commands.launch_kinds import prepare_deepspeed_cmd_env as prepare_deepspeed_cmd_env
    from accel_launch.commands.launch_kinds import prepare_multi_gpu_env as prepare_multi_gpu_env
    from accel_launch.commands.launch_kinds import (
        prepare_sagemager_args_inputs as prepare_sagemager_args_inputs,
    )
    from accel_launch.commands.launch_kinds import (
        prepare_simple_launcher_cmd_env as prepare_simple_launcher_cmd_env,
    )
    from accel_launch.commands.launch_kinds import prepare_tpu as prepare_tpu
    from accel_launch.commands.launch_kinds import sagemaker_launcher as sagemaker_launcher
    from accel_launch.commands.launch_kinds import simple_launcher as simple_launcher
    from accel_launch.commands.launch_kinds import tpu_launcher as tpu_launcher
    from accel_launch.commands.launch_kinds import tpu_pod_launcher as tpu_pod_launcher
    from accel_launch.commands.parsing import env_command as env_command
    from accel_launch.commands.parsing import env_command_parser as env_command_parser
    from accel_launch.commands.parsing import get_config_parser as get_config_parser
    from accel_launch.commands.parsing import launch_command as launch_command
    from accel_launch.commands.parsing import launch_command_parser as launch_command_parser
    from accel_launch.commands.parsing import to_fsdp2_command as to_fsdp2_command
    from accel_launch.commands.parsing import to_fsdp2_command_parser as to_fsdp2_command_parser
    from accel_launch.commands.parsing import tpu_command_launcher as tpu_command_launcher
    from accel_launch.commands.parsing import tpu_command_parser as tpu_command_parser
    from accel_launch.commands.to_fsdp2 import convert_config_to_fsdp2 as convert_config_to_fsdp2
    from accel_launch.config.basic import write_basic_config as write_basic_config
    from accel_launch.config.objects import BaseConfig as BaseConfig
    from accel_launch.config.objects import ClusterConfig as ClusterConfig
    from accel_launch.config.objects import SageMakerConfig as SageMakerConfig
    from accel_launch.config.objects import load_config_from_file as load_config_from_file
    from accel_launch.constants import DEEPSPEED_MULTINODE_LAUNCHERS as DEEPSPEED_MULTINODE_LAUNCHERS
    from accel_launch.constants import DYNAMO_BACKENDS as DYNAMO_BACKENDS
    from accel_launch.constants import (
        ELASTIC_LOG_LINE_PREFIX_TEMPLATE_PYTORCH_VERSION as ELASTIC_LOG_LINE_PREFIX_TEMPLATE_PYTORCH_VERSION,
    )
    from accel_launch.constants import SAGEMAKER_PARALLEL_EC2_INSTANCES as SAGEMAKER_PARALLEL_EC2_INSTANCES
    from accel_launch.constants import SAGEMAKER_PYTHON_VERSION as SAGEMAKER_PYTHON_VERSION
    from accel_launch.constants import SAGEMAKER_PYTORCH_VERSION as SAGEMAKER_PYTORCH_VERSION
    from accel_launch.constants import SAGEMAKER_TRANSFORMERS_VERSION as SAGEMAKER_TRANSFORMERS_VERSION
    from accel_launch.constants import TORCH_DYNAMO_MODES as TORCH_DYNAMO_MODES
    from accel_launch.constants import TORCH_LAUNCH_PARAMS as TORCH_LAUNCH_PARAMS
    from accel_launch.launchers.protocol import Launcher as Launcher
    from accel_launch.notebook import PrepareForLaunch as PrepareForLaunch
    from accel_launch.notebook import debug_launcher as debug_launcher
    from accel_launch.notebook import notebook_launcher as notebook_launcher
    from accel_launch.notebook import test_launch as test_launch
    from accel_launch.plan import LaunchPlan as LaunchPlan
    from accel_launch.plan import ProcessPlan as ProcessPlan
    from accel_launch.request import LaunchRequest as LaunchRequest

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "BaseConfig": "accel_launch.config.objects",
        "ClusterConfig": "accel_launch.config.objects",
        "DEEPSPEED_MULTINODE_LAUNCHERS": "accel_launch.constants",
        "DYNAMO_BACKENDS": "accel_launch.constants",
        "ELASTIC_LOG_LINE_PREFIX_TEMPLATE_PYTORCH_VERSION": "accel_launch.constants",
        "SAGEMAKER_PARALLEL_EC2_INSTANCES": "accel_launch.constants",
        "SAGEMAKER_PYTHON_VERSION": "accel_launch.constants",
        "SAGEMAKER_PYTORCH_VERSION": "accel_launch.constants",
        "SAGEMAKER_TRANSFORMERS_VERSION": "accel_launch.constants",
        "TORCH_DYNAMO_MODES": "accel_launch.constants",
        "TORCH_LAUNCH_PARAMS": "accel_launch.constants",
        "LaunchPlan": "accel_launch.plan",
        "LaunchRequest": "accel_launch.request",
        "Launcher": "accel_launch.launchers.protocol",
        "PrepareForLaunch": "accel_launch.notebook",
        "ProcessPlan": "accel_launch.plan",
        "SageMakerConfig": "accel_launch.config.objects",
        "convert_config_to_fsdp2": "accel_launch.commands.to_fsdp2",
        "debug_launcher": "accel_launch.notebook",
        "deepspeed_launcher": "accel_launch.commands.launch_kinds",
        "env_command": "accel_launch.commands.parsing",
        "env_command_parser": "accel_launch.commands.parsing",
        "get_config_parser": "accel_launch.commands.parsing",
        "launch_command": "accel_launch.commands.parsing",
        "launch_command_parser": "accel_launch.commands.parsing",
        "load_config_from_file": "accel_launch.config.objects",
        "main": "accel_launch.cli",
        "multi_gpu_launcher": "accel_launch.commands.launch_kinds",
        "notebook_launcher": "accel_launch.notebook",
        "prepare_deepspeed_cmd_env": "accel_launch.commands.launch_kinds",
        "prepare_multi_gpu_env": "accel_launch.commands.launch_kinds",
        "prepare_sagemager_args_inputs": "accel_launch.commands.launch_kinds",
        "prepare_simple_launcher_cmd_env": "accel_launch.commands.launch_kinds",
        "prepare_tpu": "accel_launch.commands.launch_kinds",
        "sagemaker_launcher": "accel_launch.commands.launch_kinds",
        "simple_launcher": "accel_launch.commands.launch_kinds",
        "test_launch": "accel_launch.notebook",
        "to_fsdp2_command": "accel_launch.commands.parsing",
        "to_fsdp2_command_parser": "accel_launch.commands.parsing",
        "tpu_command_launcher": "accel_launch.commands.parsing",
        "tpu_command_parser": "accel_launch.commands.parsing",
        "tpu_launcher": "accel_launch.commands.launch_kinds",
        "tpu_pod_launcher": "accel_launch.commands.launch_kinds",
        "write_basic_config": "accel_launch.config.basic",
    },
)
