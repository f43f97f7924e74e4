"""The launchers of functions, in a process of their own: they fork the process they are called in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel_launch.notebook import notebook_launcher
from accel_state.errors import ConfigError

PRELUDE = """
import os, sys
from accel_launch.notebook import debug_launcher, notebook_launcher
assert "torch" not in sys.modules
folder = sys.argv[1]
def work(*args):
    from accel_state import PartialState
    state = PartialState()
    told = [state.process_index, state.num_processes, state.local_process_index, str(state.device), *args]
    told.append(os.environ.get("ACCELERATE_MIXED_PRECISION"))
    with open(f"{folder}/{state.process_index}", "w") as file:
        print(*told, file=file)
    state.destroy_process_group()
"""


@pytest.fixture
def run(tmp_path: Path):
    def run_code(code: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
        folder = tmp_path / "told"
        folder.mkdir(exist_ok=True)
        finished = subprocess.run(
            [sys.executable, "-c", PRELUDE + code, str(folder)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return finished, {file.name: file.read_text().strip() for file in sorted(folder.iterdir())}

    return run_code


def test_a_notebook_starts_two_processes_on_the_cpu(run):
    finished, told = run("notebook_launcher(work, (7,), num_processes=2, use_port=0, mixed_precision='bf16')")
    assert finished.returncode == 0, finished.stderr
    assert told == {"0": "0 2 0 cpu 7 bf16", "1": "1 2 1 cpu 7 bf16"}


def test_one_process_runs_in_place(run):
    finished, told = run(
        "notebook_launcher(work, ('a',), num_processes=1); print('ACCELERATE_USE_CPU' in os.environ)"
    )
    assert finished.stdout == "False\n"
    assert told == {"0": "0 1 0 cpu a no"}


def test_the_debug_launcher_starts_two_processes(run):
    finished, told = run("debug_launcher(work, ('x',))")
    assert finished.returncode == 0, finished.stderr
    assert told == {"0": "0 2 0 cpu x None", "1": "1 2 1 cpu x None"}


def test_an_exception_in_a_process_is_raised_here(run):
    finished, _ = run("def fail():\n    raise ValueError('told to')\ndebug_launcher(fail)")
    assert "ValueError: told to" in finished.stderr


def test_an_accelerator_before_the_launch_is_refused(run):
    code = "from accel_state import PartialState\nPartialState(cpu=True)\nnotebook_launcher(work, num_processes=2)"
    finished, told = run(code)
    assert "StateError: An `Accelerator` was built in this notebook before" in finished.stderr
    assert told == {}


def test_a_gpu_that_was_used_before_is_refused_with_the_import_that_did_it(run):
    code = """
import types, torch
torch.cuda.is_initialized = lambda: True
sys.modules["bitsandbytes"] = types.ModuleType("bitsandbytes")
debug_launcher(work)
"""
    finished, _ = run(code)
    assert (
        "StateError: A GPU was used before `notebook_launcher`, by the import of `bitsandbytes`"
        in finished.stderr
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mixed_precision": "half"}, "`mixed_precision` is `half`, but it must be one of: no, fp16"),
        ({"node_rank": 1}, "`node_rank` is 1, but it must lie below `num_nodes`, 1"),
        ({"num_processes": -1}, "`num_processes` must be at least 1, got -1"),
    ],
)
def test_wrong_values_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        notebook_launcher(print, **given)
