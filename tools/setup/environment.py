"""A virtual environment of this checkout: filled by pip, renewed only when its inputs changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.setup.cuda_stubs import can_make_stubs, install_torch_with_stubs
from tools.setup.failures import SetupError, explain_pip_failure, require_free_space
from tools.setup.pip_runs import pip_install, run_pip
from tools.setup.running import environment_with, say, timed
from tools.setup.torch_build import pip_arguments_for_torch
from tools.workspace import ROOT, Package, requirement_name

NEEDED_BYTES = 2_500_000_000
STAMP = "accel-installed.txt"
"""The file that describes an environment: a hash of the inputs, then one requirement per line."""
EDITABLE = "the packages of this checkout"
BUILD_REQUIREMENTS = ("hatchling", "editables")
CONSTRAINTS = ROOT / "tools" / "constraints.txt"


@dataclass(frozen=True)
class Environment:
    """A virtual environment and its requirements.

    Args:
        folder: Its folder, e.g. ``.venv``.
        packages: Packages of this checkout, installed editable. They include every sibling they need, so that
            none is ever looked for on an index (the name ``accel`` there belongs to a stranger).
        requirements: What else is to be there: requirements, or paths of wheels.
        constraints: The file that pins versions.
        extra_constraints: More pins, as lines of a constraints file.
        stubs_for_cuda: If only a CUDA build of torch is available, and no GPU, install it without CUDA's libraries.
        base: An environment whose packages are visible in this one, too: torch takes a minute to install.
    """

    folder: Path
    packages: Sequence[Package] = ()
    requirements: Sequence[str] = ()
    constraints: Path = CONSTRAINTS
    extra_constraints: Sequence[str] = ()
    stubs_for_cuda: bool = False
    base: Environment | None = None

    @property
    def python(self) -> Path:
        return self.program("python")

    def program(self, name: str) -> Path:
        """Return the path of an installed command."""
        return (
            self.folder
            / ("Scripts" if os.name == "nt" else "bin")
            / (name + (".exe" if os.name == "nt" else ""))
        )

    @property
    def site_packages(self) -> Path:
        """Where packages are installed."""
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))

    @property
    def log(self) -> Path:
        return ROOT / "build" / "logs" / f"pip-{self.folder.name.lstrip('.')}.log"

    def inputs(self) -> str:
        """Return a hash of the inputs that determine the installed versions and folders."""
        digest = hashlib.sha256(f"{self.folder.resolve()} {sys.version}".encode())
        for package in self.packages:  # the installed distribution has the version
            digest.update(f"{package.name} {package.version}\n".encode())
        files = [package.folder / "pyproject.toml" for package in self.packages]
        files.append(self.constraints)
        files += [path for path in map(Path, self.requirements) if path.suffix == ".whl"]
        for file in files:
            digest.update(f"{file}\n".encode() + file.read_bytes())
        digest.update("\n".join(self.extra_constraints).encode())
        if self.base is not None:
            digest.update(self.base.inputs().encode())
        return digest.hexdigest()

    def installed(self) -> set[str]:
        """Return the requirements that were installed from the present inputs."""
        stamp = self.folder / STAMP
        if not stamp.is_file() or not self.python.exists():
            return set()
        inputs, *requirements = stamp.read_text(encoding="utf-8").splitlines()
        return set(requirements) if inputs == self.inputs() else set()

    def is_ready(self) -> bool:
        """Return True if all requirements were installed from the current inputs."""
        return {EDITABLE, *self.requirements} <= self.installed()

    def child_environ(self) -> dict[str, str]:
        """Return the environment for a program of this virtual environment, as if it were activated."""
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", "")])
        return environment_with({"VIRTUAL_ENV": str(self.folder), "PATH": path})

    def ensure(self) -> Environment:
        """Make or renew the environment if it is not ready. Raises ``SetupError`` if that fails."""
        if self.base is not None:
            self.base.ensure()
        if self.is_ready():
            return self
        free_bytes = shutil.disk_usage(ROOT).free
        require_free_space(ROOT, free_bytes=free_bytes, needed_bytes=NEEDED_BYTES)
        if not self.python.exists() or self._python_version() != sys.version:
            self._create()
        earlier = self.installed()
        (self.folder / STAMP).unlink(missing_ok=True)
        self._install()
        self._refuse_strangers()
        lines = [self.inputs(), *sorted({EDITABLE, *self.requirements} | earlier)]
        (self.folder / STAMP).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self

    def remove(self) -> None:
        """Delete the environment."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _python_version(self) -> str:
        command = [str(self.python), "-c", "import sys; print(sys.version, end='')"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def _create(self) -> None:
        self.remove()
        with timed(f"making {shown(self.folder)} with {sys.executable}"):
            pip = [] if self.base is None else ["--without-pip"]  # the one of the base serves both
            command = [sys.executable, "-m", "venv", *pip, str(self.folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            if self.base is not None:
                (self.site_packages / "base.pth").write_text(f"{self.base.site_packages}\n", encoding="utf-8")
            return
        output = done.stdout + done.stderr
        if "ensurepip" in output:
            raise SetupError(
                "This Python has no `ensurepip`. On Debian and Ubuntu: `apt install python3-venv`."
            )
        raise SetupError(explain_pip_failure(output, self.folder).replace("pip could not", "venv could not"))

    def _third_party(self) -> list[str]:
        """Return the requirements from an index, or from wheels."""
        siblings = {package.name for package in self.packages}
        declared = [each for package in self.packages for each in package.dependencies]
        needed = [each for each in declared if requirement_name(each) not in siblings]
        build = BUILD_REQUIREMENTS if self.packages else ()
        return [*dict.fromkeys([*needed, *build, *self.requirements])]

    def _constraint_files(self) -> list[Path]:
        files = [self.constraints]
        if self.extra_constraints:
            file = self.folder / "extra-constraints.txt"
            file.write_text("\n".join(self.extra_constraints) + "\n")
            files.append(file)
        return files

    def _install(self) -> None:
        """Install the requirements from the index, then the packages of this checkout, which need no others."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("", encoding="utf-8")
        environ = environment_with()
        environ.setdefault("PIP_RETRIES", "2")
        pip = pip_install(self.python)
        constraints = [word for file in self._constraint_files() for word in ("-c", str(file))]
        torch = [] if self.base else pip_arguments_for_torch(self.python, self.constraints)
        if torch is None:
            torch = []
            if self.stubs_for_cuda and can_make_stubs():
                install_torch_with_stubs(
                    self.python, constraints=self._constraint_files(), environ=environ, log=self.log
                )
            else:
                say("torch comes from the index, maybe with several GB of CUDA")
        run_pip(
            f"installing into {shown(self.folder)} (log: {shown(self.log)})",
            [*pip, *constraints, *torch, *self._third_party()],
            cwd=ROOT,
            environ=environ,
            log=self.log,
        )
        if self.packages:
            editable = [word for package in self.packages for word in ("-e", str(package.folder))]
            run_pip(
                f"adding the packages of this checkout to {shown(self.folder)}",
                [*pip, "--no-deps", "--no-build-isolation", "--no-index", *editable],
                cwd=ROOT,
                environ=environ,
                log=self.log,
            )

    def _refuse_strangers(self) -> None:
        """Raise if a sibling was not installed from this checkout."""
        if not self.packages:
            return
        names = [package.name for package in self.packages]
        code = (
            "import json, sys, importlib.metadata as m\n"
            "for name in sys.argv[2:]:\n"
            "    text = m.distribution(name).read_text('direct_url.json') or '{}'\n"
            "    print(name) if not json.loads(text).get('url', '').startswith(sys.argv[1]) else None\n"
        )
        command = [str(self.python), "-c", code, ROOT.as_uri(), *names]
        strangers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        if strangers:
            raise SetupError(
                f"{', '.join(strangers)} came from an index, not from this checkout. Log: {self.log}"
            )


def shown(path: Path) -> str:
    """Return ``path`` as a person in the checkout would type it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
