"""Losses of libraries on accel beside those under Accelerate: ``python -m tools.bench.libraries PEER [SCRIPT …]``.

Run it in `.venvs/libraries`; `PEER` is the Python of an environment with the same libraries, and Accelerate.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from accel_state.testing.scripts import run_command
from tools.workspace import ROOT

SCRIPTS = ROOT / "integration-tests" / "libraries"
NAMES = ("trainer", "fine_tuning", "sentences", "diffusion", "loops", "evaluation")
ON_ACCEL = (
    ["-m", "accel.drop_in"],
    ["-m", "accel_launch", "launch", "--cpu", "--num_processes=2", "--drop_in"],
)
ON_THE_PEER: tuple[list[str], list[str]] = (
    [],
    ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
)

Losses = Mapping[str, Sequence[float]]


def losses_of(script: str, folder: Path, *, begin: Sequence[str], python: str = sys.executable) -> Losses:
    """Run a script of `integration-tests/libraries` and return the losses that it prints, by name.

    Args:
        script: Its name, as in ``NAMES``.
        folder: Where it may write.
        begin: The words between Python and the script: an entry of ``ON_ACCEL`` or ``ON_THE_PEER``.
        python: What runs it.

    Raises:
        RuntimeError: If it fails, with what it wrote.
    """
    folder.mkdir(exist_ok=True)
    done = run_command(
        [python, *begin, str(SCRIPTS / f"{script}.py"), str(folder)],
        cwd=folder,
        env={
            "ACCELERATE_USE_CPU": "true",
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
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


def main(words: Sequence[str]) -> int:
    """Run scripts on both sides, in one process and in two, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.libraries", description=__doc__)
    parser.add_argument("peer", metavar="PEER")
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"any of: {', '.join(NAMES)}")
    arguments = parser.parse_args(words)
    print("| script | processes | values | largest difference | in |\n|-|-|-|-|-|")
    for script in arguments.scripts or NAMES:
        for index, (begin, peers) in enumerate(zip(ON_ACCEL, ON_THE_PEER, strict=True)):
            with TemporaryDirectory() as folder:
                ours = losses_of(script, Path(folder, "ours"), begin=begin)
                theirs = losses_of(script, Path(folder, "theirs"), begin=peers, python=arguments.peer)
            difference, name = largest_difference(ours, theirs)
            count = sum(map(len, ours.values()))
            print(
                f"| {script} | {index + 1} | {count} | {difference:.2g} | {name if difference else ''} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
