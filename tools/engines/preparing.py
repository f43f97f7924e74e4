"""What engines need that no package brings: site, stubs, wheels, and packages in folders next to an environment.

A process that needs a package of such a folder has it on `PYTHONPATH`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from threading import Lock

from tools.engines.cuda_stubs import make_stubs
from tools.environments import CONSTRAINTS, HATCH, Environment, program_in, uv_variables
from tools.running import SetupError, environment_with, must_run, say
from tools.site.build import build_site as build_docs
from tools.wheels import build, pinned
from tools.workspace import ROOT, dependency_group, read_packages, requirement_name

PEER_FOLDER = ROOT / "build" / "peer"
"""Folder of Accelerate, for environments where libraries that import it get accel."""
CLIENTS_FOLDER = ROOT / "build" / "clients"
"""Folder of small clients of Accelerate, without their image libraries, which are unused here."""
STRATEGY = ROOT / "docs" / "examples" / "own_strategy"
"""A third-party package that extends accel-backends, and is installed with it."""
STUBS = ROOT / ".venvs" / "xla" / "stubs"

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


def install_each_alone(environment: Environment) -> None:
    """Build all wheels, and install each package into a separate environment."""
    wheels, packages = ROOT / "build" / "alone", read_packages()
    shutil.rmtree(wheels, ignore_errors=True)
    constraints = pinned(build([STRATEGY, *(package.folder for package in packages.values())], wheels))
    for name in packages:
        Environment(f"alone.{name}", constraints).ensure(anew=True)  # else with wheels of earlier sources


def leave_accelerate_out(environment: Environment) -> None:
    """Uninstall Accelerate, which some libraries require; processes of comparison import it from a folder."""
    words = [str(environment.python), "-m", "pip", "uninstall", "--quiet", "--yes", "accelerate"]
    subprocess.run(words, env=environment_with(), check=True)  # does nothing if it is not installed
    install_peer(environment)
    install_apart(environment, CLIENTS_FOLDER, *dependency_group("clients"))


def build_site(environment: Environment) -> None:
    """Build the site, in a separate environment. Raises ``SetupError`` if that fails."""
    if build_docs() != 0:
        raise SetupError("The documentation site could not be built; see mkdocs's message above.")


def stub_cuda(environment: Environment) -> None:
    """Stub the CUDA libraries of torch_xla's torch, 6.6 GB of wheels that a CPU does not need."""
    (libraries,) = environment.folder.glob("lib/python*/site-packages/torch/lib")
    if not STUBS.exists():
        say(f"making stubs of CUDA's libraries in {STUBS}")
        make_stubs(libraries, STUBS)
