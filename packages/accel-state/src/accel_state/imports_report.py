"""Report what a script has imported to a launcher that imports the same in advance, for ranks that start again."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from accel_state.environment import variable

REPORT_VARIABLE = "ACCEL_IMPORTS_REPORT"
"""The variable that names the file to report to; without it nothing is reported."""

is_due = True
"""Whether this process has yet to report."""


def report_imports(*soon: str) -> None:
    """Write the modules that this process has imported, with their files, and those of ours that it will ``soon``."""
    global is_due
    is_due = False
    path = variable(REPORT_VARIABLE)
    if path is None or Path(path).exists():
        return
    modules = dict.fromkeys(soon, "")
    for name, module in tuple(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name == name and spec.has_location and spec.origin is not None:
            modules[name] = spec.origin
    whole = Path(f"{path}.{os.getpid()}")
    whole.write_text(json.dumps(modules))
    whole.replace(path)
