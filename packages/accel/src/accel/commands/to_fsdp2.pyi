import accel_launch.cli
from accel_launch import convert_config_to_fsdp2 as convert_config_to_fsdp2
from accel_launch import to_fsdp2_command as to_fsdp2_command
from accel_launch import to_fsdp2_command_parser as to_fsdp2_command_parser

main = accel_launch.cli.to_fsdp2
