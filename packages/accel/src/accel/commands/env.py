"""``python -m accel.commands.env`` is ``accel env``."""

import sys

from accel_launch.cli import env as main

if __name__ == "__main__":
    sys.exit(main())
