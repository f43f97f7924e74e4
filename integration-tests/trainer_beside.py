"""Options of the Trainer on accel next to Accelerate: ``python integration-tests/trainer_beside.py --all``.

Run it in `.venvs/libraries`, where `build/peer` has Accelerate. Names of options instead of ``--all`` run only these.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for `tools`, if this is run by hand
from both_sides import ACCEL, PEER, SCRIPTS

from tools.harness.scripts import run_command

OPTIONS = SCRIPTS / "trainer_options.py"
FSDP_MISSING = "Accelerate does not shard on a CPU: it refuses version 1 and trains version 2 as DDP"
DIFFERS = {
    "in_order off": "accel refuses `DataLoader(in_order=False)`",
    "fp16": "accel trains in fp16 on a CPU only when asked to",
    "auto_find_batch_size": "accel halves the batch size, Accelerate takes a tenth off",
}
"""What differs on purpose on any number of processes, and why."""
DIFFERS_ON_TWO = {
    "split_batches": "the Trainer gathers its mean loss as often as the unsplit batch has rows",
    "eval, split": "as with split_batches",
    "streamed, split": "as with split_batches",
    "dispatch and split": "as with split_batches",
    "use_seedable_sampler off": "two processes read the order that one reads",
    "group_by_length": "as with use_seedable_sampler off",
    "resumed, group_by_length": "as with use_seedable_sampler off",
    "eval, gathered as objects": "rows of tensors are items, which the metrics of this table refuse in both",
    "resumed, plain sampler": "as with use_seedable_sampler off",
    "resumed, dispatched": "Accelerate reads other rows after resuming than an uninterrupted run",
    "fsdp, clipped, bf16": "accel shards parameters in bf16, Accelerate trains as DDP with autocast",
    "fsdp, resumed, sharded": "`save_model` of the Trainer writes no whole weights for a model that is sharded",
}
"""What differs on purpose on two processes only, and why."""


def found_by(
    names: Sequence[str], folder: Path, *, num_processes: int, is_peer: bool = False, script: Path = OPTIONS
) -> dict[str, Any]:
    """Run options in one set of processes; return what each gave, by its name.

    Raises:
        RuntimeError: If the processes failed, with what they wrote.
    """
    folder.mkdir(parents=True)
    side = PEER if is_peer else ACCEL
    begin = (
        [word.replace("=2", f"={num_processes}") for word in side.together]
        if num_processes > 1
        else side.alone
    )
    environ = {
        "ACCELERATE_USE_CPU": "true", "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        "TRANSFORMERS_VERBOSITY": "error", "PYTHONPATH": os.pathsep.join(map(str, side.folders)),
    }  # fmt: skip
    words = [sys.executable, *begin, str(script), str(folder), *names]
    done = run_command(words, cwd=folder, env=environ, timeout_s=3000)
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("FOUND "):
            found |= json.loads(line.removeprefix("FOUND "))
    if set(found) != set(names):
        raise RuntimeError(f"ended with exit code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return found


def _numbers(found: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(found, dict):
        for key, value in found.items():
            yield from _numbers(value, f"{place}.{key}")
    elif isinstance(found, list):
        for index, value in enumerate(found):
            yield from _numbers(value, f"{place}[{index}]")
    else:
        yield place, found


def largest_difference(ours: Any, theirs: Any) -> tuple[float, str]:
    """Return the largest relative difference between two findings, and where; infinity where they have other parts."""
    mine, other = dict(_numbers(ours)), dict(_numbers(theirs))
    if mine.keys() != other.keys():
        return float("inf"), ", ".join(sorted(mine.keys() ^ other.keys())[:4])
    return max(
        (0.0 if mine[place] == value else abs(mine[place] - value) / (abs(value) or 1), place)
        for place, value in other.items()
    )


def reason(name: str, *, num_processes: int) -> str | None:
    """Return why an option gives other numbers on purpose, if it does."""
    if name in DIFFERS:
        return DIFFERS[name]
    if num_processes == 1:
        return None
    return FSDP_MISSING if name.startswith("fsdp1") else DIFFERS_ON_TWO.get(name)


def main(words: Sequence[str]) -> int:
    """Print a table of the options, on one process and on two; the exit code is 1 if one differs without a reason."""
    listed = [sys.executable, str(OPTIONS), "--list"]
    names = run_command(listed).stdout.splitlines() if list(words) == ["--all"] else list(words)
    is_wrong = False
    print("| option | processes | largest relative difference | in |\n|-|-|-|-|")
    for name in names:
        for num_processes in (1, 2):
            if num_processes == 1 and name.startswith("fsdp"):
                continue  # the Trainer itself refuses it
            with TemporaryDirectory() as folder:
                ours, theirs = (
                    found_by([name], Path(folder, str(side)), num_processes=num_processes, is_peer=side)[name]
                    for side in (False, True)
                )
            if "error" in ours or "error" in theirs:
                size, place = float("inf"), f"accel: {ours.get('error')}; Accelerate: {theirs.get('error')}"
            else:
                size, place = largest_difference(ours, theirs)
            why = reason(name, num_processes=num_processes)
            is_wrong |= size > 1e-3 and why is None
            print(f"| {name} | {num_processes} | {size:.2g} | {why or (place if size else '')} |", flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
