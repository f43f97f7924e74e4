from accel_launch.cli import main as main
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
from accel_launch.launchers.selection import Launcher as Launcher
from accel_launch.notebook import PrepareForLaunch as PrepareForLaunch
from accel_launch.notebook import debug_launcher as debug_launcher
from accel_launch.notebook import notebook_launcher as notebook_launcher
from accel_launch.notebook import test_launch as test_launch
from accel_launch.plan import LaunchPlan as LaunchPlan
from accel_launch.plan import ProcessPlan as ProcessPlan
from accel_launch.request import LaunchRequest as LaunchRequest

__version__: str
