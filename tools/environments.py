"""The environments of ``pyproject.toml``: hatch makes them, with uv, and again when what they are made from changes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from urllib.error import URLError
from urllib.request import urlopen

from tools.running import environment_with, must_run, say
from tools.workspace import ROOT, read_packages

CONSTRAINTS = ROOT / "tools" / "constraints.txt"
HATCH = ROOT / ".venvs" / "hatch"
CPU_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
GPU_SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/kfd")
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""uv's variables for settings of pip."""

_lock = Lock()  # engines are set up side by side


@dataclass(frozen=True)
class Environment:
    """An environment of hatch, in ``.venv`` (`default` and the part of it that the demo needs) or ``.venvs/NAME``.

    Args:
        name: Its name in ``pyproject.toml``.
        constraints: The file that pins versions.
    """

    name: str = "default"
    constraints: Path = CONSTRAINTS

    @property
    def folder(self) -> Path:
        return ROOT / ".venv" if self.name in ("default", "demo") else ROOT / ".venvs" / self.name

    @property
    def python(self) -> Path:
        return self.program("python")

    def program(self, name: str) -> Path:
        """Return the path of an installed command."""
        return program_in(self.folder, name)

    def child_environ(self) -> dict[str, str]:
        """Return the environment for a program of this virtual environment, as if it were activated."""
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", "")])
        return environment_with({"VIRTUAL_ENV": str(self.folder), "PATH": path})

    def ensure(self, *, anew: bool = False) -> Environment:
        """Make the environment if it does not exist, or from other inputs. Raises ``SetupError`` if that fails."""
        stamp, inputs = self.folder / f"made-{self.name}.txt", inputs_of(self.constraints)
        if not anew and stamp.is_file() and stamp.read_text(encoding="utf-8") == inputs:
            return self
        with _lock:
            hatch = installed_hatch()
        made_from = {each.read_text(encoding="utf-8") for each in self.folder.glob("made-*.txt")}
        if anew or made_from != {inputs}:  # unfinished, or of other inputs
            shutil.rmtree(self.folder, ignore_errors=True)
        say(f"making {self.folder.relative_to(ROOT)} …")
        with TemporaryDirectory() as data:
            changes = {
                "ACCEL_CONSTRAINTS": str(self.constraints),
                "HATCH_CONFIG": str(ROOT / "tools" / "hatch.toml"),
                "HATCH_DATA_DIR": data,  # what hatch remembers of a folder is wrong when it is deleted
            }
            command = [hatch, "--no-color", "run", f"{self.name}:python", "-c", ""]
            must_run(command, environment_with(uv_variables() | changes))
        stamp.write_text(inputs, encoding="utf-8")
        return self


def inputs_of(constraints: Path, *, root: Path = ROOT) -> str:
    """Return a digest of what an environment is made from."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packages = [(package.version, package.project) for package in read_packages(root).values()]
    described = [
        sys.version,
        str(root),
        project["dependency-groups"],
        project["tool"]["hatch"]["envs"],
        packages,
    ]
    text = json.dumps(described) + constraints.read_text(encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def installed_hatch() -> Path:
    """Install hatch and uv into ``.venvs/hatch``, in the versions of the constraints, and return hatch's program."""
    pins = re.findall(r"^(?:hatch|hatchling|uv)==.*$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    stamp, wanted = HATCH / "made.txt", "\n".join([sys.version, *pins])
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(HATCH, ignore_errors=True)
        say("installing hatch …")
        python, uv = program_in(HATCH, "python"), program_in(HATCH, "uv")
        must_run([sys.executable, "-m", "venv", HATCH])
        must_run(
            [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c", CONSTRAINTS, "uv"]
        )
        must_run(
            [uv, "pip", "install", "--quiet", "--python", python, *pins], environment_with(uv_variables())
        )
        stamp.write_text(wanted, encoding="utf-8")
    return program_in(HATCH, "hatch")


@cache
def uv_variables() -> dict[str, str]:
    """Return what makes uv install from where pip does, and the CPU build of torch on a Linux without a GPU.

    There the index's own torch brings gigabytes of CUDA.
    """
    command = [str(program_in(HATCH, "python")), "-m", "pip", "config", "list"]
    done = subprocess.run(command, env=environment_with(), capture_output=True, text=True, check=True)
    variables = {"UV_BUILD_CONSTRAINT": str(CONSTRAINTS), **uv_variables_of(done.stdout)}
    if sys.platform == "linux" and not has_gpu() and is_reachable(CPU_INDEX):
        variables["UV_TORCH_BACKEND"] = "cpu"
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def uv_variables_of(settings: str) -> dict[str, str]:
    """Return uv's variables for the ``settings`` that ``pip config list`` prints; uv reads none of them."""
    listed = re.findall(r"^[\w:]+\.([\w-]+)='(.*)'$", settings, re.MULTILINE)[::-1]  # of the environment last
    places = {UV_NAMES[name]: text.replace("\\n", " ").split() for name, text in listed if name in UV_NAMES}
    variables = {
        name: ("," if name == "UV_FIND_LINKS" else " ").join(texts) for name, texts in places.items()
    }
    # As pip: the best version of all indexes.
    return variables | ({"UV_INDEX_STRATEGY": "unsafe-best-match"} if "UV_INDEX" in variables else {})


def has_gpu() -> bool:
    """Return True if this machine shows signs of a GPU that a default torch could use."""
    return any(Path(sign).exists() for sign in GPU_SIGNS) or shutil.which("nvidia-smi") is not None


def is_reachable(url: str) -> bool:
    """Return True if ``url`` answers."""
    try:
        with urlopen(url, timeout=10):  # noqa: S310 (a constant https address)
            return True
    except URLError:
        say(f"{url} is unreachable: torch comes from the indexes of pip")
        return False


def program_in(folder: Path, name: str) -> Path:
    """Return the path of a program in the virtual environment ``folder``."""
    return folder / "Scripts" / f"{name}.exe" if os.name == "nt" else folder / "bin" / name
