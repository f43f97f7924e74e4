"""A virtual environment of this checkout: filled in one pip call, renewed only when its inputs changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.setup.failures import SetupError, explain_pip_failure, require_free_space
from tools.setup.running import environment_with, timed
from tools.setup.torch_build import pip_arguments_for_torch
from tools.workspace import ROOT, Package

NEEDED_BYTES = 2_500_000_000
STAMP = "accel-inputs.sha256"


@dataclass(frozen=True)
class Environment:
    """A virtual environment and everything it is to hold.

    Args:
        folder: Where it lies, e.g. ``.venv``.
        packages: Packages of this checkout, installed editable. They include every sibling they need, so that
            none is ever looked for on an index (the name ``accel`` there belongs to a stranger).
        requirements: What else is to be there: requirements, or paths of wheels.
        constraints: The file that pins versions.
        extra_constraints: More pins, as lines of a constraints file.
    """

    folder: Path
    packages: Sequence[Package] = ()
    requirements: Sequence[str] = ()
    constraints: Path = ROOT / "tools" / "constraints.txt"
    extra_constraints: Sequence[str] = ()

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
    def log(self) -> Path:
        return ROOT / "build" / "logs" / f"pip-{self.folder.name.lstrip('.')}.log"

    def fingerprint(self) -> str:
        """Return a hash of everything that decides what is installed, folder and Python included."""
        digest = hashlib.sha256(f"{self.folder.resolve()} {sys.version}".encode())
        files = [package.folder / "pyproject.toml" for package in self.packages]
        files.append(self.constraints)
        files += [path for path in map(Path, self.requirements) if path.suffix == ".whl"]
        for file in files:
            digest.update(f"{file}\n".encode() + file.read_bytes())
        digest.update("\n".join([*self.requirements, *self.extra_constraints]).encode())
        return digest.hexdigest()

    def is_ready(self) -> bool:
        """Return True if what is there was made from the present inputs."""
        stamp = self.folder / STAMP
        return stamp.is_file() and self.python.exists() and stamp.read_text() == self.fingerprint()

    def child_environ(self) -> dict[str, str]:
        """Return the environment for a program of this virtual environment, as if it were activated."""
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", "")])
        return environment_with({"VIRTUAL_ENV": str(self.folder), "PATH": path})

    def ensure(self) -> Environment:
        """Make or renew the environment if it is not ready. Raises ``SetupError`` if that fails."""
        if self.is_ready():
            return self
        free_bytes = shutil.disk_usage(ROOT).free
        require_free_space(ROOT, free_bytes=free_bytes, needed_bytes=NEEDED_BYTES)
        if not self.python.exists() or self._python_version() != sys.version:
            self._create()
        (self.folder / STAMP).unlink(missing_ok=True)
        with timed(f"installing into {shown(self.folder)} (log: {shown(self.log)})"):
            self._install()
        self._refuse_strangers()
        (self.folder / STAMP).write_text(self.fingerprint())
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
            command = [sys.executable, "-m", "venv", str(self.folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        output = done.stdout + done.stderr
        if "ensurepip" in output:
            raise SetupError(
                "This Python has no `ensurepip`. On Debian and Ubuntu: `apt install python3-venv`."
            )
        raise SetupError(explain_pip_failure(output, self.folder).replace("pip could not", "venv could not"))

    def _pip_command(self, constraint_files: Sequence[Path]) -> list[str]:
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        for file in constraint_files:
            command += ["-c", str(file)]
        command += pip_arguments_for_torch(self.python, self.constraints)
        for package in self.packages:
            command += ["-e", str(package.folder)]
        return [*command, *self.requirements]

    def _constraint_files(self) -> list[Path]:
        files = [self.constraints]
        if self.extra_constraints:
            file = self.folder / "extra-constraints.txt"
            file.write_text("\n".join(self.extra_constraints) + "\n")
            files.append(file)
        return files

    def _install(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = self._pip_command(self._constraint_files())
        environ = environment_with()
        environ.setdefault("PIP_RETRIES", "2")
        with self.log.open("w", encoding="utf-8") as log:
            log.write(" ".join(command) + "\n")
            log.flush()
            code = subprocess.run(
                command, cwd=ROOT, env=environ, stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
        if code != 0:
            raise SetupError(explain_pip_failure(self.log.read_text(encoding="utf-8"), self.log))

    def _refuse_strangers(self) -> None:
        """Raise if a sibling came from anywhere but this checkout."""
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
