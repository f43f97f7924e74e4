"""``python -m accel.commands.tpu`` is ``accel tpu-config``."""

import sys

from accel_launch.cli import tpu_config as main

if __name__ == "__main__":
    sys.exit(main())
