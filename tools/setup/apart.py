"""Packages in separate folders next to an environment: a process that needs one has its folder on `PYTHONPATH`."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from tools.setup.environment import Environment, shown
from tools.setup.pip_runs import pip_install, run_pip
from tools.workspace import ROOT, dependency_group, requirement_name

PEER_FOLDER = ROOT / "build" / "peer"
"""Folder of Accelerate, for environments where libraries that import it get accel."""
CLIENTS_FOLDER = ROOT / "build" / "clients"
"""Folder of small clients of Accelerate, without their image libraries, which are unused here."""

_one_at_a_time = threading.Lock()  # two engines that are set up side by side may want the same folder


def install_apart(environment: Environment, folder: Path, *requirements: str) -> None:
    """Install packages into ``folder``, without their requirements: the ones in use are installed already."""
    stamp, wanted = folder / "installed.txt", "\n".join(requirements)
    with _one_at_a_time:
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        shutil.rmtree(folder, ignore_errors=True)
        log = ROOT / "build" / "logs" / f"pip-{folder.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        run_pip(
            f"{', '.join(requirements)} into {shown(folder)}",
            [*pip_install(environment.python), "--no-deps", "--target", str(folder), *requirements],
            cwd=ROOT,
            environ=environment.child_environ() | {"DS_BUILD_OPS": "0"},
            log=log,
        )
        stamp.write_text(wanted)


def install_peer(environment: Environment) -> None:
    """Install Accelerate, in the release that benchmarks measure, into ``PEER_FOLDER``."""
    (requirement,) = (each for each in dependency_group("bench") if requirement_name(each) == "accelerate")
    install_apart(environment, PEER_FOLDER, requirement)


def install_clients(environment: Environment) -> None:
    """Install the dependency group ``clients`` into ``CLIENTS_FOLDER``."""
    install_apart(environment, CLIENTS_FOLDER, *dependency_group("clients"))
