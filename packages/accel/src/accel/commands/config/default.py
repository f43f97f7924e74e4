"""Names that users import from `accel.commands.config.default`; see `accel.aliases`."""

from accel.aliases import aliases
from accel_launch.commands.config import default_command_parser as default_command_parser
from accel_launch.commands.config import write_default as default_config_command  # noqa: F401
from accel_launch.commands.parsing import HelpFormatter as SubcommandHelpFormatter  # noqa: F401

__getattr__, __dir__, __all__ = aliases(__name__)
