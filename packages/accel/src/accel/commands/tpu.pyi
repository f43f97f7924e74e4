import accel_launch.cli
from accel_launch import tpu_command_launcher as tpu_command_launcher
from accel_launch import tpu_command_parser as tpu_command_parser

main = accel_launch.cli.tpu_config
