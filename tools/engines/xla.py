"""torch_xla on the CPU, with the torch that it was built for.

That torch is a CUDA build: stubs take the place of CUDA's libraries, 6.6 GB of wheels that a CPU does not need.
"""

from __future__ import annotations

from tools.engines.protocol import Engine
from tools.setup.cuda_stubs import make_stubs
from tools.setup.environment import Environment, shown
from tools.setup.pip_runs import pip_install, run_pip
from tools.setup.running import environment_with, timed
from tools.workspace import ROOT, dependency_group, read_packages, requirement_name

PINNED = ("torch==2.9.0", "torch_xla==2.9.0")
THEIR_REQUIREMENTS = (
    "absl-py", "filelock", "fsspec", "jinja2", "networkx", "numpy", "pyyaml", "requests", "setuptools", "sympy",
    "typing-extensions",
)  # fmt: skip
FOLDER = ROOT / ".venvs" / "xla"
STUBS = FOLDER / "stubs"


def xla_environment() -> Environment:
    """Return the environment without torch, torch_xla and our packages: they get no requirements."""
    packages = read_packages()
    ours = {
        requirement
        for package in packages.values()
        for requirement in package.dependencies
        if requirement_name(requirement) not in {*packages, "torch"}
    }
    groups = [
        *dependency_group("test"),
        *dependency_group("wheels"),  # with those, packages are built in place
        "safetensors",  # the tests read with it what we write
    ]
    return Environment(FOLDER, (), [*groups, *THEIR_REQUIREMENTS, *sorted(ours)])


def install_torch(environment: Environment) -> None:
    """Install torch, torch_xla and our packages without their requirements, and make the stubs; once."""
    stamp = FOLDER / "torch-xla-inputs.txt"
    packages = list(read_packages().values())
    wanted = " ".join([Environment(FOLDER, packages).inputs(), *PINNED])
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    ours = [word for package in packages for word in ("-e", str(package.folder))]
    run_pip(
        f"installing {' '.join(PINNED)} (1 GB) into {shown(FOLDER)} (log: {shown(environment.log)})",
        [*pip_install(environment.python), "--no-deps", "--no-build-isolation", *PINNED, *ours],
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
        "tools/tests/setup/test_cuda_stubs.py",
    ),
    environment=xla_environment,
    debian=("binutils", "gcc"),
    variables={"LD_LIBRARY_PATH": str(STUBS), "PJRT_DEVICE": "CPU"},
    prepare=install_torch,
)
