"""``python -m accel.commands.config`` is ``accel config``."""

import sys

from accel_launch.cli import config

sys.exit(config())
