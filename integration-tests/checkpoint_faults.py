"""Kill saving processes at random instants and see that a checkpoint is always there.

The tests kill until two have come inside a save, in four of eight ways, and with `ACCEL_TEST_REPEATS=50` fifty times as
often. After each kill a fresh look at the disk must find: a checkpoint that is complete, every digest right, all values
those of one save, and at most one save older than the last that was requested. The next run continues from it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from preloaded import SAVING
from safetensors import safe_open

from accel_backends.strategies.deepspeed.checkpoints.saved_engine import SavedEngine
from accel_checkpoint.formats.distributed import DistributedState
from accel_checkpoint.listing import check_loadable, find_newest
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.tensors import fetched
from tools.harness.scripts import start_ranks

SCRIPT = Path(__file__).with_name("save_forever.py")
START_S = 180


def kill_during_saves(project, *, kills, num_processes, limit, chance, enough, **options):
    """Start, kill and check again and again; return how many kills came between the begin and the end of a save.

    ``options`` are more of `save_forever`: with ``shards``, a type of state dict, the processes share one model and
    save it so; with ``stage`` engines of DeepSpeed do.
    Stops before the last of ``kills`` when ``enough`` of them came there.
    """
    argv = [SCRIPT, json.dumps({"project": str(project), "limit": limit, **options})]
    preload = (*(["deepspeed"] if "stage" in options else []), *SAVING)
    num_hits = 0
    for number in range(kills):
        before = read(project / "done")
        with start_ranks(argv, num_processes, preload=preload) as ranks:
            end = time.monotonic() + START_S
            while read(project / "done") < before + 2:
                assert time.monotonic() < end, "the savers do not save"
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.04))
            for rank in chance.sample(ranks, num_processes):
                rank.process.kill()
        num_hits += read(project / "asked") != read(project / "done")
        found = check(project, limit=limit, where=f"kill {number}")
        value = value_in(found.path)
        assert found.number == value, f"kill {number}: {found.path.name} holds the values of save {value}"
        if num_hits == enough:
            break
    return num_hits


def read(path):
    return int(path.read_text()) if path.exists() else -1


def check(project, *, limit, where):
    folder = project / "checkpoints"
    found = check_loadable(find_newest(folder), verify=True)
    value, asked = value_in(found.path), read(project / "asked")
    assert value >= asked - 1, f"{where}: the newest checkpoint is of save {value}, {asked} was asked for"
    committed = [name for name in os.listdir(folder) if name.startswith("checkpoint_")]
    # The newest may be there while the oldest is not yet gone.
    assert len(committed) <= limit + 1, f"{where}: {committed}"
    return found


def value_in(checkpoint):
    if (checkpoint / "pytorch_model_fsdp_0").is_dir():
        saved = DistributedState(saved_files(checkpoint), "pytorch_model_fsdp_0")
        values = {value.item() for one in saved.entries.values() for value in saved.value(one).unique()}
    elif (checkpoint / "pytorch_model").is_dir():
        weights = SavedEngine(saved_files(checkpoint), "pytorch_model").weights()
        values = {value.item() for one in weights.values() for value in fetched(one).unique()}
    else:
        with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
            values = {value.item() for name in file.keys() for value in file.get_tensor(name).unique()}  # noqa: SIM118
    assert len(values) == 1, f"{checkpoint} holds values of several saves: {values}"
    return int(values.pop())
