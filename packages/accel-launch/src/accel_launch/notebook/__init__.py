"""Starting functions instead of scripts: `notebook_launcher` and `debug_launcher`.

The part of the package that runs in a process with torch: the processes are forked, so that they have what the notebook
has defined. torch itself is imported when a launcher is called.
"""

from __future__ import annotations

from accel_launch.notebook.debugging import PrepareForLaunch, debug_launcher, test_launch
from accel_launch.notebook.launching import notebook_launcher

__all__ = ["PrepareForLaunch", "debug_launcher", "notebook_launcher", "test_launch"]
