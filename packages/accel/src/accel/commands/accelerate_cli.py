"""``python -m accel.commands.accelerate_cli`` is ``accel``."""

import sys

from accel_launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
