"""Runs scripts of tests on ranks of this machine, for tests of DeepSpeed."""

from pathlib import Path

import preloaded
import torch

from tools.harness.scripts import run_script


def launch(script, folder, *arguments, num_processes=2, preload=("deepspeed", *preloaded.ACCEL), **environ):
    """Run ``script`` in ``folder``, and return what it ended with."""
    variables = {"ACCELERATE_USE_CPU": "true", "HF_HOME": str(Path(folder) / "hf"), **environ}
    return run_script(
        script,
        *map(str, arguments),
        num_processes=num_processes,
        cwd=folder,
        env=variables,
        timeout_s=400,
        preload=preload,
    )


def results_of(script, folder, *, num_processes=2):
    """Return what each rank saved in ``folder``, as RANK.pt."""
    done = launch(script, folder, folder, num_processes=num_processes)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(num_processes)]


def assert_equal(found, wanted):
    """Assert that nested values are equal, tensors bit for bit."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, dict):
            assert_equal(found[name], value)
        else:
            assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value)), name
