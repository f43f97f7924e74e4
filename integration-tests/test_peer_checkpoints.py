"""Checkpoints of Accelerate load here, and ours load there, with the real package."""

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest

from accel_state.testing import run_script

SCRIPT = Path(__file__).with_name("either_package.py")

pytestmark = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs accelerate")


def carry_over(folder, *, saver, loader, num_processes, options):
    """Save with one package, load with the other; return what both had then, by rank."""
    states = []
    for package, action in ((saver, "save"), (loader, "load")):
        arguments = [package, action, str(folder / "checkpoint"), str(folder / action), *options]
        env = {"ACCELERATE_USE_CPU": "true"}
        done = run_script(
            SCRIPT, *arguments, num_processes=num_processes, launcher="torchrun", env=env, timeout_s=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        states.append(
            [json.loads((folder / f"{action}.{rank}").read_text()) for rank in range(num_processes)]
        )
    return states


JOBS = {
    f"{saver}-{name}": partial(
        carry_over, saver=saver, loader=loader, num_processes=num_processes, options=options
    )
    for saver, loader in (("accelerate", "accel"), ("accel", "accelerate"))
    for name, num_processes, options in (
        ("bin-scaler", 1, ["bin", "scaler"]),
        ("safe-position", 1, ["safe", "position"]),
        ("two-processes", 2, ["safe", "position"]),
    )
}


@pytest.mark.parametrize("outcome", JOBS.values(), ids=JOBS.keys(), indirect=True)
def test_everything_carries_over(outcome):
    saved, loaded = outcome
    assert loaded == saved
