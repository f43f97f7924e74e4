"""Names that users import from `accel.commands.launch`; see `accel.faces`. Also ``accel launch``."""

import sys

from accel.faces import face
from accel_launch.cli import launch as main

if __name__ == "__main__":
    sys.exit(main())

__getattr__, __dir__, __all__ = face(__name__)
