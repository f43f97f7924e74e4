"""``python -m accel_launch`` is the ``accel`` command."""

from __future__ import annotations

import sys

from accel_launch.cli import main

sys.exit(main())
