"""Names that users import from `accel.commands.config`; see `accel.faces`."""

from accel.faces import face
from accel_launch.cli import config

main = config
__getattr__, __dir__, __all__ = face(__name__)
