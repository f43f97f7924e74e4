"""Losses of the scripts in `libraries` on accel and under Accelerate, which is in a folder apart."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.harness.scripts import run_command
from tools.setup.apart import CLIENTS_FOLDER, PEER_FOLDER

SCRIPTS = Path(__file__).with_name("libraries")


@dataclass(frozen=True)
class Side:
    """The package that `accelerate` is for a script.

    Args:
        alone: The words between Python and a script in one process.
        together: The words that start it in two.
        folders: Where it imports from before all else.
    """

    alone: tuple[str, ...]
    together: tuple[str, ...]
    folders: tuple[Path, ...] = (CLIENTS_FOLDER,)


ACCEL = Side(
    alone=("-m", "accel.drop_in"),
    together=("-m", "accel_launch", "launch", "--cpu", "--num_processes=2", "--drop_in"),
)
PEER = Side(
    alone=(),
    together=("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
    folders=(PEER_FOLDER, CLIENTS_FOLDER),
)

Losses = Mapping[str, Sequence[float]]


def losses_of(script: str, folder: Path, *, side: Side = ACCEL, num_processes: int = 1) -> Losses:
    """Run a script of `integration-tests/libraries` and return the losses that it prints, by name.

    Args:
        script: The name of its file.
        folder: Where it may write.
        side: What `accelerate` means to it.
        num_processes: 1 or 2.

    Raises:
        RuntimeError: If it fails, with its output.
    """
    folder.mkdir(exist_ok=True)
    begin = side.alone if num_processes == 1 else side.together
    done = run_command(
        [sys.executable, *begin, str(SCRIPTS / f"{script}.py"), str(folder)],
        cwd=folder,
        env={
            "ACCELERATE_USE_CPU": "true",
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, side.folders)),
        },
        timeout_s=600,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOSSES ")]
    if done.returncode != 0 or len(lines) != 1:
        raise RuntimeError(
            f"`{script}.py` ended with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    losses: Losses = json.loads(lines[0].removeprefix("LOSSES "))
    return losses


def on_both_sides(script: str, folder: Path, *, num_processes: int = 1) -> tuple[Losses, Losses]:
    """Return the losses of a script on accel, and those under Accelerate.

    Raises:
        RuntimeError: If it fails, with its output.
    """
    folder.mkdir(exist_ok=True)
    return (
        losses_of(script, folder / "accel", num_processes=num_processes),
        losses_of(script, folder / "peer", side=PEER, num_processes=num_processes),
    )


def largest_difference(ours: Losses, theirs: Losses) -> tuple[float, str]:
    """Return the largest difference between losses of one name and place, and that name.

    Raises:
        ValueError: If names or numbers of losses differ.
    """
    if {name: len(losses) for name, losses in ours.items()} != {
        name: len(losses) for name, losses in theirs.items()
    }:
        raise ValueError(f"Losses have other names or another number: {ours} and {theirs}.")
    return max(
        (abs(mine - other), name)
        for name in ours
        for mine, other in zip(ours[name], theirs[name], strict=True)
    )
