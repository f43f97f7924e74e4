"""Which build of torch to install: the index's default, or the CPU build without a GPU.

On Linux the index's default torch brings several GB of CUDA libraries. If there is no GPU and pip would
take that one, the index of CPU builds is added, if it can be reached.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tools.setup.running import environment_with, say

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def has_gpu() -> bool:
    """Return True if this machine shows signs of a GPU that a default torch could use."""
    signs = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/kfd")
    return any(Path(sign).exists() for sign in signs) or shutil.which("nvidia-smi") is not None


def version_pip_would_take(python: Path, constraints: Path) -> str | None:
    """Return the version of torch that plain pip would install here, or None if it finds none."""
    command = [python, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
    command += ["--report", "-", "-c", constraints, "torch"]
    done = subprocess.run(
        [str(word) for word in command], env=environment_with(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return None
    return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])


def is_reachable(url: str, *, timeout_s: float = 10) -> bool:
    """Return True if ``url`` answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s):  # noqa: S310 (a constant https address)
            return True
    except (urllib.error.URLError, OSError):
        return False


def pip_arguments_for_torch(python: Path, constraints: Path) -> list[str] | None:
    """Return the extra arguments that make pip take the right build of torch on this machine.

    None if that would be a CPU build, and only a CUDA build is to be had.
    """
    if sys.platform != "linux" or has_gpu():
        return []
    version = version_pip_would_take(python, constraints)
    if version is not None and "+cpu" in version:
        return []
    if is_reachable(f"{CPU_INDEX}/torch/"):
        say(f"no GPU here: installing a CPU build of torch from {CPU_INDEX}")
        return ["--extra-index-url", CPU_INDEX]
    if version is None:
        return []  # pip reports the reason
    say(f"{CPU_INDEX} is unreachable: pip finds torch {version} on the index")
    return None
