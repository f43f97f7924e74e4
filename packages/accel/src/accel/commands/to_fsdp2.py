"""Names that users import from `accel.commands.to_fsdp2`; see `accel.aliases`. Also ``accel to-fsdp2``."""

import sys

from accel.aliases import aliases
from accel_launch.cli import to_fsdp2 as main

if __name__ == "__main__":
    sys.exit(main())

__getattr__, __dir__, __all__ = aliases(__name__)
