"""Names that users import from `accel.commands.config`; see `accel.faces`."""

from accel.faces import face
from accel_launch.cli import config as main

__getattr__, __dir__, __all__ = face(__name__)
