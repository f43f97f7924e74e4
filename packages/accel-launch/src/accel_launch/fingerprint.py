"""What must be the same on all machines that run ranks: Python, its packages, the script.

As a program, ``python -P -m accel_launch.fingerprint``, it reads ``{"cwd": ..., "script": ...}`` from its
standard input and writes the fingerprint of its machine, a port that is free there, and the number of its
accelerators, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from accel_launch import __version__
from accel_launch.launchers.local import free_port
from accel_launch.machine import find_accelerators
from accel_state.environment import snapshot

_OWN_PACKAGE = "accel-launch"


def fingerprint(cwd: str, script: str | None) -> dict[str, Any]:
    """Return what is compared; ``script`` is None for a module, which is among the packages."""
    return {
        "python": platform.python_version(),
        "directory": cwd if Path(cwd).is_dir() else None,
        "script": digest_of_script(cwd, script),
        "packages": _packages(),
    }


def digest_of_script(cwd: str, script: str | None) -> str | None:
    """Return a digest of the script, empty for a module, None if it is missing."""
    if script is None:
        return ""
    file = Path(cwd) / script
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def _packages() -> dict[str, str]:
    """Return the versions by name; what somebody has removed by half has neither."""
    whole = (dist for dist in distributions() if dist.read_text("METADATA") or dist.read_text("PKG-INFO"))
    found = {
        dist.name.lower(): dist.version for dist in reversed(list(whole))
    }  # the first is what is imported
    return found | {_OWN_PACKAGE: __version__}  # of what runs here, installed or not


def faults(there: Mapping[str, Any], *, cwd: str, launcher: str) -> list[str]:
    """Say in words what keeps a machine from running any rank, for a launcher of version ``launcher``."""
    found = []
    if there["directory"] is None:
        found.append(f"the directory `{cwd}` is missing")
    elif there["script"] is None:
        found.append("the script is missing")
    version = there["packages"].get(_OWN_PACKAGE)
    if version != launcher:
        found.append(f"`{_OWN_PACKAGE}` is {version or 'missing'} instead of {launcher}, as here")
    return found


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Say in words what is not the same on the ``other`` machine: what breaks a run, and what may not matter."""
    breaking: list[str] = []
    small: list[str] = []
    if one["python"] != other["python"]:
        is_minor = one["python"].split(".")[:2] != other["python"].split(".")[:2]
        (breaking if is_minor else small).append(f"Python is {other['python']} instead of {one['python']}")
    if one["script"] and other["script"] and one["script"] != other["script"]:
        breaking.append("the script is another")
    for name in sorted({*one["packages"], *other["packages"]} - {_OWN_PACKAGE}):
        expected, found = one["packages"].get(name), other["packages"].get(name)
        if expected != found:
            is_ours = name == "torch" or name == "accel" or name.startswith("accel-")
            told = f"`{name}` is {found or 'missing'} instead of {expected or 'missing'}"
            (breaking if is_ours else small).append(told)
    return breaking, small


def main() -> int:
    """Answer one question."""
    asked = json.loads(sys.stdin.readline())
    numbers = {"free_port": free_port(), "num_accelerators": len(find_accelerators(snapshot()).names)}
    sys.stdout.write(json.dumps(fingerprint(asked["cwd"], asked["script"]) | numbers) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
