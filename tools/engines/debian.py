"""Debian packages that tests of engines need, installed by apt-get."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable

from tools.running import SetupError, environment_with, must_run, say


def missing_packages(names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that are not installed, sorted; all of them without dpkg."""
    wanted = sorted(set(names))
    if not wanted or shutil.which("dpkg-query") is None:
        return wanted
    command = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *wanted]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in told.splitlines() if line.endswith(" installed")}
    return [name for name in wanted if name not in installed]


def install_packages(names: Iterable[str]) -> None:
    """Install ``names`` with apt-get. Raises ``SetupError`` if there is none, or if it fails."""
    wanted = sorted(names)
    if shutil.which("apt-get") is None:
        raise SetupError(f"There is no apt-get here to install {', '.join(wanted)}. Use Debian or Ubuntu.")
    environ = environment_with({"DEBIAN_FRONTEND": "noninteractive"})
    say(f"apt-get installs {' '.join(wanted)} …")
    must_run(["apt-get", "-qq", "update"], environ)
    must_run(["apt-get", "-qq", "install", "--yes", "--no-install-recommends", *wanted], environ)
