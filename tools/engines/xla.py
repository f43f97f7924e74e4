"""torch_xla on the CPU, with the torch that it was built for.

That torch cannot be imported without CUDA's libraries, of which a CPU needs none: 6.6 GB of wheels. Instead, stub
libraries are compiled: they have the names that torch links to, and every function answers "no device".
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.engines.protocol import Engine
from tools.setup.environment import Environment, shown
from tools.setup.failures import SetupError
from tools.setup.pip_runs import run_pip
from tools.setup.running import environment_with, timed
from tools.workspace import ROOT, dependency_group, read_packages, requirement_name

PINNED = ("torch==2.9.0", "torch_xla==2.9.0")
THEIR_REQUIREMENTS = (
    "absl-py", "filelock", "fsspec", "jinja2", "networkx", "numpy", "pyyaml", "requests", "setuptools", "sympy",
    "typing-extensions",
)  # fmt: skip
LOG = ROOT / "build" / "logs" / "xla-stubs.log"
FOLDER = ROOT / ".venvs" / "xla"
STUBS = FOLDER / "stubs"
CUDA_LIBRARY = re.compile(r"NEEDED\s+(lib(?:cu|nv|nccl)\S+)")
CUDA_SYMBOL = re.compile(r"\bU ((?:__)?(?:cu|nv|nccl)\w+)")
DEFINED_SYMBOL = re.compile(r"\b[A-TV-Z] (\w+)")
NO_DEVICE = 100
"""``cudaErrorNoDevice`` and ``CUDA_ERROR_NO_DEVICE``."""


def xla_environment() -> Environment:
    """Return the environment without torch, torch_xla and our packages: they come without their requirements."""
    packages = read_packages()
    ours = {
        requirement
        for package in packages.values()
        for requirement in package.dependencies
        if requirement_name(requirement) not in {*packages, "torch"}
    }
    groups = [
        *dependency_group("test"),
        *dependency_group("wheels"),
    ]  # with those, packages are built in place
    return Environment(FOLDER, (), [*groups, *THEIR_REQUIREMENTS, *sorted(ours)])


def run_logged(command: Sequence[str | Path]) -> str:
    """Run a program of the set-up and return what it prints. Raises ``SetupError`` that names the log."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment_with(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        LOG.parent.mkdir(parents=True, exist_ok=True)
        LOG.write_text(f"{' '.join(words)}\n{done.stdout}{done.stderr}", encoding="utf-8")
        raise SetupError(
            f"CUDA's libraries could not be replaced by stubs: `{Path(words[0]).name}` failed. Log: {LOG}"
        )
    return done.stdout


def stub_source(symbols: Iterable[str]) -> str:
    """Return C in which every symbol is a function that answers "no device"."""
    lines = [f"int accel_no_device(void) {{ return {NO_DEVICE}; }}"]
    lines += [f'int {name}(void) __attribute__((alias("accel_no_device")));' for name in symbols]
    return "\n".join(lines) + "\n"


def make_stubs(torch_libraries: Path, stubs: Path) -> None:
    """Compile stubs of the CUDA libraries that the libraries of torch link to.

    The functions are in a library of their own, which the named ones load: the loader demands versions of
    symbols that it finds in the library named by the reference, and of no other.
    """
    files = sorted(torch_libraries.glob("*.so*"))
    names = set(CUDA_LIBRARY.findall(run_logged(["objdump", "-p", *files])))
    symbols = set(CUDA_SYMBOL.findall(run_logged(["nm", "-D", "--undefined-only", *files])))
    symbols -= set(DEFINED_SYMBOL.findall(run_logged(["nm", "-D", "--defined-only", *files])))
    stubs.mkdir(exist_ok=True)
    source = stubs / "no_device.c"
    source.write_text(stub_source(sorted(symbols)))
    library = stubs / "libaccel_no_device.so"
    run_logged(["gcc", "-shared", "-fPIC", "-w", "-o", library, source])
    empty = stubs / "empty.c"
    empty.touch()
    for name in sorted(names - {file.name for file in files}):
        run_logged(
            ["gcc", "-shared", "-o", stubs / name, empty, f"-Wl,-soname,{name}", "-Wl,--no-as-needed", library,
             "-Wl,-rpath,$ORIGIN"]
        )  # fmt: skip


def install_torch(environment: Environment) -> None:
    """Install torch, torch_xla and our packages without their requirements, and make the stubs; once."""
    stamp = FOLDER / "torch-xla-inputs.txt"
    packages = list(read_packages().values())
    wanted = " ".join([Environment(FOLDER, packages).inputs(), *PINNED])
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    ours = [word for package in packages for word in ("-e", str(package.folder))]
    pip = [str(environment.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    run_pip(
        f"installing {' '.join(PINNED)} (1 GB) into {shown(FOLDER)} (log: {shown(environment.log)})",
        [*pip, "--no-deps", "--no-build-isolation", *PINNED, *ours],
        cwd=ROOT,
        environ=environment_with(),
        log=environment.log,
    )
    with timed(f"making stubs of CUDA's libraries in {shown(STUBS)}"):
        (libraries,) = FOLDER.glob("lib/python*/site-packages/torch/lib")
        make_stubs(libraries, STUBS)
    stamp.write_text(wanted)


engine = Engine(
    name="xla",
    purpose="torch_xla on the CPU: one device, and two of one process",
    tests=(
        "integration-tests/test_xla.py",
        "integration-tests/test_xla_training.py",
        "tools/tests/engines/test_xla.py",
    ),
    environment=xla_environment,
    debian=("binutils", "gcc"),
    variables={"LD_LIBRARY_PATH": str(STUBS), "PJRT_DEVICE": "CPU"},
    prepare=install_torch,
)
