"""Runs scripts of tests by `accel launch` on ranks of this machine, for tests of DeepSpeed."""

import sys
from pathlib import Path

import torch

from tools.harness.scripts import run_command


def launch(script, folder, *arguments, num_processes=2, flags=(), **environ):
    """Run ``script`` in ``folder``, and return what it ended with."""
    command = [
        sys.executable,
        "-m",
        "accel_launch",
        "launch",
        "--cpu",
        f"--num_processes={num_processes}",
        *flags,
    ]
    variables = {"OMP_NUM_THREADS": "1", "HF_HOME": str(Path(folder) / "hf"), **environ}
    return run_command(
        [*command, str(script), *map(str, arguments)], cwd=folder, env=variables, timeout_s=400
    )


def results_of(script, folder, *, num_processes=2):
    """Return what each rank saved in ``folder``, as RANK.pt."""
    done = launch(script, folder, folder, num_processes=num_processes)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(num_processes)]
