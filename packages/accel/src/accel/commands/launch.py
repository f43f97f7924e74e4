"""Names that users import from `accel.commands.launch`. Also ``accel launch``."""

import sys

from accel_launch.cli import launch as main
from accel_state.lazy import attach_stub

if __name__ == "__main__":
    sys.exit(main())

__getattr__, __dir__, __all__ = attach_stub(__name__)
