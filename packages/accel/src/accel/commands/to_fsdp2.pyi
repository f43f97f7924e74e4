import accel_launch.cli
from accel.commands.parsing import to_fsdp2_command as to_fsdp2_command
from accel.commands.parsing import to_fsdp2_command_parser as to_fsdp2_command_parser
from accel_launch import convert_config_to_fsdp2 as convert_config_to_fsdp2

main = accel_launch.cli.to_fsdp2
