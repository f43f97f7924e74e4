"""Run the tests, and with a GPU the device tests a second time; the last line is pytest's summary."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from tools.engines import ENGINES, ONLY_IF_NAMED
from tools.engines.running import run_engines
from tools.setup.environment import Environment, has_gpu
from tools.setup.running import SetupError, run, say
from tools.workspace import ROOT

LIMIT_S = 2700.0
"""The suite takes minutes; a hanging process that keeps the pipes of pytest-xdist open would block it forever."""
SEES_A_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"
NO_TESTS = 5
"""pytest's exit code if nothing was chosen."""
MOST_WORKERS = 4
"""Each has a gigabyte or two of libraries, ranks and scripts."""

ENGINE_PROGRAMS = frozenset(
    {"deepspeed", "mpiexec", "mpirun", "pdsh", "sbatch", "scontrol", "srun", "ssh", "sshd"}
)
"""The programs of engines: tests without the mark `engine` do without them."""


def main(arguments: argparse.Namespace) -> int:
    if arguments.engines is not None:
        if arguments.paths:
            raise SetupError("`--engines` selects the tests: pass engines, not paths.")
        every = [name for name in ENGINES if name not in ONLY_IF_NAMED]
        return run_engines(arguments.engines or every, arguments.handed_on)
    environment = Environment().ensure()
    command = [environment.python, "-m", "pytest", *options_in_ci(), *arguments.paths]
    if not arguments.paths and (num_cores := os.cpu_count() or 1) > 1:
        # In several processes, because many tests wait. The files keep the order that `conftest.py` gives them:
        # pytest-xdist would run files with few tests last.
        command += ["-n", str(min(num_cores, MOST_WORKERS)), "--dist", "loadfile", "--no-loadscope-reorder"]
    command += arguments.handed_on
    with tempfile.TemporaryDirectory(prefix="accel-path-") as folder:
        environ = environ_of_suite(environment.child_environ(), Path(folder))
        code = run(command, cwd=ROOT, environ=environ, limit_s=LIMIT_S)
        if not has_gpu() or run([environment.python, "-c", SEES_A_GPU], cwd=ROOT, environ=environ):
            return code
        say("the second pass: tests of devices, on the GPU")
        on_gpu = {**environ, "ACCEL_TEST_DEVICE": "cuda"}
        second = run([*command, "-m", "gpu"], cwd=ROOT, environ=on_gpu, limit_s=LIMIT_S)
        return code or (0 if second == NO_TESTS else second)


def environ_of_suite(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of the plain suite: in CI, one without the programs of engines."""
    return environ | {"PATH": path_without_engines(environ["PATH"], folder)} if is_ci() else environ


def path_without_engines(path: str, folder: Path) -> str:
    """Return a ``PATH`` on which `ENGINE_PROGRAMS` cannot be found, and all other files of ``path`` can.

    Folders with one of them are replaced by folders of links below ``folder``.
    """
    entries = [entry for entry in path.split(os.pathsep) if Path(entry).is_dir()]
    for place, entry in enumerate(entries):
        programs = {program.name: program.absolute() for program in Path(entry).iterdir()}
        if ENGINE_PROGRAMS.isdisjoint(name.partition(".")[0] for name in programs):
            continue
        links = folder / str(place)
        links.mkdir()
        for name, program in programs.items():
            if name.partition(".")[0] not in ENGINE_PROGRAMS:  # Debian also has `mpirun.openmpi`
                (links / name).symlink_to(program)
        entries[place] = str(links)
    return os.pathsep.join(entries)


def options_in_ci() -> list[str]:
    """Return pytest's arguments in CI: a skip for an unknown reason is a failure, and slow tests are listed."""
    return ["--no-unexpected-skips", "--durations=20"] if is_ci() else []


def is_ci() -> bool:
    """Return True if a CI service runs this, which sets ``CI``."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def known_engine(name: str) -> str:
    """Return ``name`` if there is such an engine."""
    if name not in ENGINES:
        raise argparse.ArgumentTypeError(f"there is no engine `{name}`; known: {', '.join(ENGINES)}")
    return name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", help="what to test, e.g. packages/accel-ops; all if left out")
    about = (
        "run the tests of engines instead, of all but `disks` if none is named; installs their requirements"
    )
    parser.add_argument("--engines", nargs="*", type=known_engine, metavar="NAME", help=about)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    engines = "\n".join(f"  {name:<10}  {engine.purpose}" for name, engine in ENGINES.items())
    example = "What follows `--` goes to pytest: python tools/dev.py test -- -k gather -x"
    parser.epilog = f"engines:\n{engines}\n\n{example}"
