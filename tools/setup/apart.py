"""Packages in separate folders next to an environment: a process that needs one has its folder on `PYTHONPATH`."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from tools.setup.environment import CONSTRAINTS, HATCH, Environment, must_run, program_in, uv_variables
from tools.setup.running import environment_with
from tools.workspace import ROOT, dependency_group, requirement_name

PEER_FOLDER = ROOT / "build" / "peer"
"""Folder of Accelerate, for environments where libraries that import it get accel."""
CLIENTS_FOLDER = ROOT / "build" / "clients"
"""Folder of small clients of Accelerate, without their image libraries, which are unused here."""

_lock = Lock()  # two engines that are set up side by side may want the same folder


def install_apart(environment: Environment, folder: Path, *requirements: str) -> None:
    """Install packages into ``folder``, without their requirements: the ones in use are installed already."""
    words = ["pip", "install", "--quiet", "--no-deps", "--python", environment.python, "--target", folder]
    environ = environment_with({**uv_variables(), "UV_CONSTRAINT": str(CONSTRAINTS), "DS_BUILD_OPS": "0"})
    with _lock:
        must_run([program_in(HATCH, "uv"), *words, *requirements], environ)


def install_peer(environment: Environment) -> None:
    """Install Accelerate, in the release that benchmarks measure, into ``PEER_FOLDER``."""
    (requirement,) = (each for each in dependency_group("bench") if requirement_name(each) == "accelerate")
    install_apart(environment, PEER_FOLDER, requirement)


def install_clients(environment: Environment) -> None:
    """Install the dependency group ``clients`` into ``CLIENTS_FOLDER``."""
    install_apart(environment, CLIENTS_FOLDER, *dependency_group("clients"))
