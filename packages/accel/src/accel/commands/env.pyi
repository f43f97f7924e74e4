import accel_launch.cli
from accel.commands.parsing import env_command as env_command
from accel.commands.parsing import env_command_parser as env_command_parser

main = accel_launch.cli.env
