"""Names that users import from `accel.commands.env`; see `accel.aliases`. Also ``accel env``."""

import sys

from accel.aliases import aliases
from accel_launch.cli import env as main

if __name__ == "__main__":
    sys.exit(main())

__getattr__, __dir__, __all__ = aliases(__name__)
