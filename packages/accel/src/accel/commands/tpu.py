"""Names that users import from `accel.commands.tpu`; see `accel.aliases`. Also ``accel tpu-config``."""

import sys

from accel.aliases import aliases
from accel_launch.cli import tpu_config as main

if __name__ == "__main__":
    sys.exit(main())

__getattr__, __dir__, __all__ = aliases(__name__)
