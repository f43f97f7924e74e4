from accel_launch.cli import main as main
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
