"""Their own Pythons, without site-packages: Accelerate itself may be installed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PACKAGES = (
    "accel", "accel_backends", "accel_bigmodel", "accel_checkpoint", "accel_data", "accel_launch", "accel_ops",
    "accel_state", "accel_trackers",
)  # fmt: skip


@pytest.fixture
def run_python() -> Callable[..., Any]:
    """Return a function that runs Python with our packages only, and returns what it printed last, as JSON."""

    def run(*words: str, folders: tuple[Path, ...] = ()) -> Any:
        ours = [str(Path(find_spec(name).origin).parents[1]) for name in PACKAGES]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, folders), *dict.fromkeys(ours)])}
        done = subprocess.run(
            [sys.executable, "-S", *words], capture_output=True, text=True, env=environ, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
