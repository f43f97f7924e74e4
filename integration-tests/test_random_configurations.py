"""A training script sees with accel what it sees with Accelerate, whatever its settings: a sample of random ones.

Settings for which docs/start/from_accelerate.md names a difference are not drawn, or what differs is not compared.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tools.harness.scripts import run_script

pytestmark = pytest.mark.engine("long")

SCRIPT = Path(__file__).with_name("random_training.py")
PRELOADED = ("torch._dynamo", "torch.utils.data.distributed", "torch.distributed.algorithms.join")
REPEATS = int(os.environ.get("ACCEL_TEST_REPEATS", "1"))
SAMPLE = {1: 20, 2: 12, 3: 6}
"""How many configurations are run, by the number of processes."""
NUMBERS = {"losses", "norms", "weights", "gathered", "rates"}
CHOICES: dict[str, tuple[Any, ...]] = {
    "data": ("map", "map", "map", "stream"),
    "rows": (2, 3, 5, 7, 8, 11, 12, 13, 16, 17),
    "batch_size": (1, 2, 3, 4, 5, 6),
    "sampler": ("in order",) * 4
    + ("shuffled",) * 6
    + ("random", "random, generator", "weighted", "own", "paired batches"),
    "drop_last": (False, False, False, True),
    "num_workers": (0,) * 11 + (1,),
    "skip": (0, 0, 1, 2),
    "others": ([], [], [4], [9], [5, 4]),
    "epochs": (1, 2, 2, 3),
    "set_epoch": (False, False, False, False, True),
    "split_batches": (False, False, False, True),
    "dispatch_batches": (None, None, None, True, False),
    "even_batches": (True, True, True, False),
    "use_seedable_sampler": (False, False, True),
    "data_seed": (None,) * 6 + (5,),
    "non_blocking": (False,) * 9 + (True,),
    "use_stateful_dataloader": (False,) * 4 + (True,),
    "accumulation": (1, 1, 2, 3, 4),
    "plugin": (False, True),
    "adjust_scheduler": (True, True, False),
    "sync_with_dataloader": (True, True, False),
    "sync_each_batch": (False,) * 4 + (True,),
    "mixed_precision": ("no",) * 4 + ("bf16",),
    "device_placement": (True,) * 9 + (False,),
    "scheduler": (None, "linear", "step", "cosine", "restarts", "sequence"),
    "step_scheduler_with_optimizer": (True,) * 4 + (False,),
    "optimizer": ("sgd", "adam"),
    "dropout": (False,) * 4 + (True,),
    "train": (True,) * 4 + (False,),
    "metric": (None, "tensor", "tuple", "nested", "named tuple", "user dict", "bool", "objects", "dicts"),
    "clip": (None, None, "norm", "value"),
    "resume": (0, 1, 2),
    "reduce_of": ("float", "matrix", "scalar", "nested"),
    "reduction": ("sum", "mean"),
    "padded_of": ("vector", "matrix", "nested"),
    "pad_dim": (0, 0, 1, -1),
    "pad_index": (0, -100),
    "pad_first": (False, False, True),
}
SEEDABLE = {"shuffled", "random", "random, generator"}


def configuration(seed: int, num_processes: int) -> dict[str, Any]:
    """Return random settings of which PyTorch allows the combination, and that no documented difference concerns."""
    chance = random.Random(f"{seed} of {num_processes}")
    chosen: dict[str, Any] = {name: chance.choice(values) for name, values in CHOICES.items()}
    several = num_processes > 1
    if chosen["data"] == "stream":
        chosen |= {"sampler": "in order", "dispatch_batches": None}
    if several and chosen["sampler"] in {*SEEDABLE, "weighted"}:
        chosen |= {"use_seedable_sampler": True, "sampler": "shuffled"}  # others draw another order there
    is_dispatched = (
        chosen["data"] == "stream" if chosen["dispatch_batches"] is None else chosen["dispatch_batches"]
    )
    if several and (chosen["data"] == "stream" or is_dispatched):
        chosen |= {"even_batches": True, "drop_last": False}
    if is_dispatched:
        chosen["device_placement"] = True
    if several and chosen["split_batches"]:
        chosen["batch_size"] = 6  # a multiple of the processes
    draws_order = chosen["sampler"] in {*SEEDABLE, "weighted"} and not chosen["use_seedable_sampler"]
    if chosen["use_stateful_dataloader"]:
        chosen |= {"others": [], "sampler": "in order", "num_workers": 0}
    step = chosen["batch_size"] * (1 if chosen["split_batches"] else num_processes)
    if (
        not chosen["use_stateful_dataloader"]
        or chosen["rows"] <= chosen["resume"] * step
        or (several and is_dispatched)
    ):
        chosen["resume"] = 0
    if several or draws_order or chosen["dropout"] or chosen["data"] == "stream" or chosen["resume"]:
        chosen["skip"] = 0
    if chosen["skip"]:
        chosen |= {"epochs": 1, "others": []}
    chosen["uneven"] = several and not chosen["even_batches"]
    if chosen["uneven"]:
        chosen["train"] = False  # ranks would wait for each other
    return {**chosen, "seed": seed}


def not_compared(settings: dict[str, Any]) -> set[str]:
    """Return what differs on purpose."""
    names = {"draws", "flags"} if settings["skip"] else set()
    if settings["rows"] < settings["batch_size"] and settings["drop_last"]:
        names |= {"flags"}  # a loader without batches has ended
    return names | ({"length"} if settings["uneven"] else set())


def seen_with(library: str, folder: Path, num_processes: int) -> list[list[dict[str, Any]]]:
    """Return what the script sees on each rank with each of the settings in the folder."""
    env = {"ACCELERATE_USE_CPU": "true"}
    done = run_script(
        SCRIPT, library, str(folder), num_processes=num_processes, env=env, preload=PRELOADED, timeout_s=200
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{library}-{rank}.json").read_text()) for rank in range(num_processes)]


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", SAMPLE)
def test_scripts_see_what_they_see_with_accelerate(tmp_path, num_processes):
    drawn = [configuration(seed, num_processes) for seed in range(SAMPLE[num_processes] * REPEATS)]
    (tmp_path / "settings.json").write_text(json.dumps(drawn))
    theirs, ours = (seen_with(library, tmp_path, num_processes) for library in ("accelerate", "accel"))
    for number, settings in enumerate(drawn):
        for their, our in zip(theirs, ours, strict=True):
            names = (their[number].keys() | our[number].keys()) - not_compared(settings)
            for name in sorted(names):
                assert our[number].get(name) == their[number].get(name), f"`{name}` with {settings}"
