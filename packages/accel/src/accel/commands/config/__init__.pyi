import accel.commands.parsing
import accel_launch.cli
from accel.commands.config import config_args as config_args
from accel.commands.config import default as default
from accel.commands.config.objects import load_config_from_file as load_config_from_file
from accel.commands.parsing import get_config_parser as get_config_parser
from accel_launch.commands.config import default_command_parser as default_command_parser
from accel_launch.commands.config import update_command_parser as update_command_parser

default_config_file: str
main = accel_launch.cli.config
config_command_parser = accel.commands.parsing.get_config_parser
