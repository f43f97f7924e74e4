"""What must be the same on all machines of a run: Python, its packages, the script.

As a program, ``python -P -m accel_launch.fingerprint``, it reads ``{"cwd": ..., "script": ...}`` from its
standard input and writes the fingerprint of its machine, a port that is free there, and the number of its
accelerators, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import platform
import socket
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from accel_launch.accelerators.detection import find_accelerators
from accel_state.environment import snapshot


def fingerprint(cwd: str, script: str | None) -> dict[str, Any]:
    """Return what is compared; ``script`` is None for a module, which is among the packages."""
    file = None if script is None else Path(cwd) / script
    return {
        "python": platform.python_version(),
        "directory": cwd if Path(cwd).is_dir() else None,
        "script": hashlib.sha256(file.read_bytes()).hexdigest() if file and file.is_file() else None,
        "packages": _packages(),
    }


def _packages() -> dict[str, str]:
    """Return the versions by name; what somebody has removed by half has neither."""
    whole = (dist for dist in distributions() if dist.read_text("METADATA") or dist.read_text("PKG-INFO"))
    return {
        dist.name.lower(): dist.version for dist in reversed(list(whole))
    }  # the first is what is imported


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Say in words what is not the same ``there``: what breaks a run, and what may not matter."""
    breaking: list[str] = []
    small: list[str] = []
    if here["python"] != there["python"]:
        is_minor = here["python"].split(".")[:2] != there["python"].split(".")[:2]
        (breaking if is_minor else small).append(f"Python is {there['python']} instead of {here['python']}")
    if there["directory"] is None:
        breaking.append(f"the directory `{here['directory']}` is missing")
    elif here["script"] != there["script"]:
        breaking.append("the script is missing" if there["script"] is None else "the script is another")
    for name in sorted({*here["packages"], *there["packages"]}):
        own, other = here["packages"].get(name), there["packages"].get(name)
        if own != other:
            is_ours = name == "torch" or name == "accel" or name.startswith("accel-")
            told = f"`{name}` is {other or 'missing'} instead of {own or 'missing'}"
            (breaking if is_ours else small).append(told)
    return breaking, small


def free_port() -> int:
    """Return a port that nobody listens to at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Answer one question."""
    asked = json.loads(sys.stdin.readline())
    numbers = {"free_port": free_port(), "num_accelerators": len(find_accelerators(snapshot()).names)}
    sys.stdout.write(json.dumps(fingerprint(asked["cwd"], asked["script"]) | numbers) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
