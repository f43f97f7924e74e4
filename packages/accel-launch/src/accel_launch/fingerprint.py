"""What must be the same on all machines of a run: Python, its packages, the script.

As a program, ``python -P -m accel_launch.fingerprint``, it reads ``{"cwd": ..., "script": ...}`` from its
standard input and writes the fingerprint of its machine, and a port that is free there, as JSON.
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


def fingerprint(cwd: str, script: str | None) -> dict[str, Any]:
    """Return what is compared; ``script`` is None for a module, which is among the packages."""
    file = None if script is None else Path(cwd) / script
    return {
        "python": platform.python_version(),
        "directory": cwd if Path(cwd).is_dir() else None,
        "script": hashlib.sha256(file.read_bytes()).hexdigest() if file and file.is_file() else None,
        "packages": {dist.metadata["Name"].lower(): dist.version for dist in distributions()},
    }


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Say in words what is not the same ``there``."""
    found = []
    if here["python"] != there["python"]:
        found.append(f"Python is {there['python']} instead of {here['python']}")
    if there["directory"] is None:
        found.append(f"the directory `{here['directory']}` is missing")
    elif here["script"] != there["script"]:
        found.append("the script is missing" if there["script"] is None else "the script is another")
    names = sorted({*here["packages"], *there["packages"]})
    for name in names:
        own, other = here["packages"].get(name), there["packages"].get(name)
        if own != other:
            found.append(f"`{name}` is {other or 'missing'} instead of {own or 'missing'}")
    return found


def free_port() -> int:
    """Return a port that nobody listens to at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Answer one question."""
    asked = json.loads(sys.stdin.readline())
    sys.stdout.write(
        json.dumps(fingerprint(asked["cwd"], asked["script"]) | {"free_port": free_port()}) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
