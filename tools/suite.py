"""The tests of the checkout, or those of engines."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from tools.engines import ENGINES, ONLY_IF_NAMED
from tools.engines.running import run_engines
from tools.environments import Environment, has_gpu
from tools.running import SetupError, is_ci, options_in_ci, run, say

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


def test(arguments: argparse.Namespace) -> int:
    """Run the tests, and with a GPU the device tests a second time; the last line is pytest's summary."""
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
        code = run(command, environ=environ, limit_s=LIMIT_S)
        if not has_gpu() or run([environment.python, "-c", SEES_A_GPU], environ=environ):
            return code
        say("the second pass: tests of devices, on the GPU")
        on_gpu = {**environ, "ACCEL_TEST_DEVICE": "cuda"}
        second = run([*command, "-m", "gpu"], environ=on_gpu, limit_s=LIMIT_S)
        return code or (0 if second == NO_TESTS else second)


def environ_of_suite(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of the plain suite; in CI, with a ``PATH`` on which no `ENGINE_PROGRAMS` can be found.

    Folders with one of them are replaced by folders of links, below ``folder``, to all other files.
    """
    entries = [entry for entry in environ["PATH"].split(os.pathsep) if Path(entry).is_dir()]
    for place, entry in enumerate(entries if is_ci() else ()):
        programs = {program.name: program.absolute() for program in Path(entry).iterdir()}
        others = [name for name in programs if name.partition(".")[0] not in ENGINE_PROGRAMS]
        if len(others) < len(programs):  # Debian also has `mpirun.openmpi`
            entries[place] = str(folder / str(place))
            (folder / str(place)).mkdir()
            for name in others:
                (folder / str(place) / name).symlink_to(programs[name])
    return environ | {"PATH": os.pathsep.join(entries)}
