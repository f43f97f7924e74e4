import accel_launch.cli
from accel.commands.parsing import tpu_command_launcher as tpu_command_launcher
from accel.commands.parsing import tpu_command_parser as tpu_command_parser

main = accel_launch.cli.tpu_config
