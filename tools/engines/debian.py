"""Debian packages that tests of engines need, installed by apt-get."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tools.setup.environment import shown
from tools.setup.running import SetupError, environment_with, timed
from tools.workspace import ROOT

LOG = ROOT / "build" / "logs" / "apt.log"


def missing_packages(names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that are not installed, sorted; all of them without dpkg."""
    wanted = sorted(set(names))
    if not wanted or shutil.which("dpkg-query") is None:
        return wanted
    command = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *wanted]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in told.splitlines() if line.endswith(" installed")}
    return [name for name in wanted if name not in installed]


def install_packages(names: Iterable[str], *, log: Path = LOG) -> None:
    """Install ``names`` with apt-get. Raises ``SetupError`` with apt-get's last error if it fails."""
    wanted = sorted(names)
    if shutil.which("apt-get") is None:
        raise SetupError(f"There is no apt-get here to install {', '.join(wanted)}. Use Debian or Ubuntu.")
    log.parent.mkdir(parents=True, exist_ok=True)
    environ = environment_with({"DEBIAN_FRONTEND": "noninteractive"})
    with (
        timed(f"apt-get installs {' '.join(wanted)} (log: {shown(log)})"),
        log.open("w", encoding="utf-8") as file,
    ):
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *wanted]):
            done = subprocess.run(
                ["apt-get", *command],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if done.returncode != 0:
                errors = [line for line in log.read_text(encoding="utf-8").splitlines() if line[:2] == "E:"]
                raise SetupError(
                    f"apt-get failed ({errors[-1] if errors else 'it gave no reason'}). Log: {log}"
                )
