"""Starting functions instead of scripts: `notebook_launcher` and `debug_launcher`.

The part of the package that runs in a process with torch: the processes are forked, so that they have what the notebook
has defined. torch itself is imported when it is needed.
"""

from __future__ import annotations

from accel_launch.notebook.launching import debug_launcher, notebook_launcher

__all__ = ["debug_launcher", "notebook_launcher"]
