"""Names that users import from `accel.commands.config`; see `accel.aliases`."""

from accel.aliases import aliases
from accel_launch.cli import config

main = config
__getattr__, __dir__, __all__ = aliases(__name__)
