"""Report what a script has imported to a launcher that imports the same in advance, for ranks that start again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from accel_state.environment import snapshot, variable

REPORT_VARIABLE = "ACCEL_IMPORTS_REPORT"
"""The variable that names the file to report to; without it nothing is reported."""

is_due = True
"""Whether this process has yet to report."""


def digest(value: str | None) -> str:
    """Return what stands for the value of a variable in a report, which shows no secret."""
    return "" if value is None else hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()


def report_imports(*soon: str) -> None:
    """Write the modules that this process has imported, with their files, and those of ours that it will ``soon``.

    The environment stands beside them, as digests.
    """
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
    environ = {name: digest(value) for name, value in snapshot().items()}
    whole.write_text(json.dumps([modules, environ]))
    whole.replace(path)
