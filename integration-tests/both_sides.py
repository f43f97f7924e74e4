"""What the scripts in `libraries` find on accel and under Accelerate, which is in a folder apart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from accel_state.environment import restore, snapshot
from tools.engines.preparing import CLIENTS_FOLDER, PEER_FOLDER
from tools.harness.fork_server import fork_server
from tools.harness.scripts import run_script
from tools.workspace import ROOT

SCRIPTS = Path(__file__).with_name("libraries")
LIBRARIES = (
    "datasets",
    "diffusers.models.unets.unet_2d",
    "lm_eval.models.huggingface",
    "sentence_transformers",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "trl.trainer.dpo_trainer",
    "trl.trainer.grpo_trainer",
    "trl.trainer.sft_trainer",
)
"""What the scripts of a side find imported: together 15 s of a processor's time."""
IMPORTED_WITH = {
    "ACCELERATE_USE_CPU": "true", "HF_HOME": str(ROOT / "build" / "hf"), "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}  # fmt: skip
"""The environment that the libraries are imported in: they read it then."""


@dataclass(frozen=True)
class Side:
    """The package that `accelerate` is for a script.

    Args:
        name: Its name.
        module: Imported first, it makes that so.
        folders: Where a script imports from before all else.
    """

    name: str
    module: str
    folders: tuple[Path, ...]

    def run(
        self, *argv: str | Path, folder: Path, num_processes: int = 1, timeout_s: float = 600
    ) -> CompletedProcess[str]:
        """Run ``python *argv`` in a folder; its processes are forked from one that has imported the libraries.

        Raises:
            RuntimeError: If `accelerate` is another package there.
        """
        if self.found != self.name:
            raise RuntimeError(f"`accelerate` is {self.found}, and not {self.name}.")
        return self._run(*argv, folder=folder, num_processes=num_processes, timeout_s=timeout_s)

    @cached_property
    def found(self) -> str:
        """What `accelerate` is for a script that imports it."""
        ask = "from accelerate import Accelerator; print(Accelerator.__module__.partition('.')[0])"
        done = self._run("-c", ask, folder=ROOT)
        return done.stdout.strip() or done.stderr

    def _run(self, *argv: str | Path, folder: Path, **options: Any) -> CompletedProcess[str]:
        fork_server()  # from which the servers of both sides are forked
        before, modules = snapshot(), (self.module, *LIBRARIES)
        environ = {**IMPORTED_WITH, "PYTHONPATH": os.pathsep.join(map(str, self.folders))}
        os.environ.update(environ)
        try:
            fork_server(modules)
        finally:
            restore(before)
        return run_script(*map(str, argv), env=environ, cwd=folder, preload=modules, **options)


ACCEL = Side("accel", "accel.drop_in", (CLIENTS_FOLDER,))
PEER = Side("accelerate", "accelerate", (PEER_FOLDER, CLIENTS_FOLDER))


def found_by(
    script: str, folder: Path, *names: str, side: Side = ACCEL, num_processes: int = 1, timeout_s: float = 600
) -> dict[str, Any]:
    """Run a script of `integration-tests/libraries` in one or two processes and return what it reports, by name.

    Args:
        script: The name of its file.
        folder: Where it may write.
        names: Its further arguments.
        side: What `accelerate` means to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = (SCRIPTS / f"{script}.py", folder, *names)
    return reported(side.run(*words, folder=folder, num_processes=num_processes, timeout_s=timeout_s))


def reported(done: CompletedProcess[str]) -> dict[str, Any]:
    """Return what a script has printed for its tests. Raises ``RuntimeError`` with its output if it failed."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"ended with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return {name: one for line in lines for name, one in json.loads(line.removeprefix("FOUND ")).items()}


def on_both_sides(
    script: str, folder: Path, *names: str, **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a script reports on accel, and under Accelerate."""
    sides = {"accel": ACCEL, "peer": PEER}
    ours, theirs = (found_by(script, folder / one, *names, side=sides[one], **options) for one in sides)
    return ours, theirs


def _numbers(found: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(found, (dict, list)):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from _numbers(value, f"{place}.{key}")
    else:
        yield place, found


def largest_difference(ours: Any, theirs: Any) -> tuple[float, str]:
    """Return the largest relative difference between two reports, and where; infinity where they have other parts."""
    mine, other = dict(_numbers(ours)), dict(_numbers(theirs))
    if mine.keys() != other.keys():
        return float("inf"), ", ".join(sorted(mine.keys() ^ other.keys())[:4])
    return max(
        (0.0 if mine[place] == value else abs(mine[place] - value) / (abs(value) or 1), place)
        for place, value in other.items()
    )
