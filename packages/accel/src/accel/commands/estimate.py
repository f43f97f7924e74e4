"""Names that users import from `accel.commands.estimate`; see `accel.aliases`. Also ``accel estimate-memory``."""

import sys

from accel.aliases import aliases
from accel_launch.cli import estimate_memory as main
from accel_launch.commands.parsing import CustomArgumentParser as CustomArgumentParser

if __name__ == "__main__":
    sys.exit(main())

__getattr__, __dir__, __all__ = aliases(__name__)
