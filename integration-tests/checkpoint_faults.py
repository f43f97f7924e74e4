"""Kill saving processes at random instants and see that a checkpoint is always there.

`python integration-tests/checkpoint_faults.py --kills 500` is the whole proof; the tests kill until two have come
inside a save, in four of eight ways. After each kill a fresh look at the disk must find: a checkpoint that is complete,
every digest right, all values those of one save, and at most one save older than the last that was requested. The next
run continues from it.

`--every-call` leaves no instant out: a small save is killed before each call that changes the file system, one after
the other; and each of these calls fails, and is interrupted by Ctrl-C, and the same process continues. The tests
do the first for saves under numbers, leaving out the calls that only write more bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from forking import Runs
from safetensors import safe_open

from accel_backends.strategies.deepspeed.checkpoints.saved_engine import SavedEngine
from accel_checkpoint.formats.distributed import DistributedState
from accel_checkpoint.listing import check_loadable, find_newest
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.tensors import fetched

SCRIPT = Path(__file__).with_name("save_forever.py")
INTERRUPTED = Path(__file__).with_name("save_interrupted.py")
HOW = ("kill", "error", "ctrl-c")
START_S = 180
SHARDED_WAYS = [
    (shards, behind) for shards in ("SHARDED_STATE_DICT", "FULL_STATE_DICT") for behind in (False, True)
]
DEEPSPEED_WAYS = [(stage, behind) for stage in (2, 3) for behind in (False, True)]
WAYS = [(num, limit, behind) for num in (1, 2) for limit in (1, 2) for behind in (False, True)]
PAIRS = [(1, 1, False), (1, 2, True), (2, 1, True), (2, 2, False)]
"""Of `WAYS` as many as hold every pair of values."""


def kill_during_saves(
    savers, project, *, kills, num_processes, limit, behind, chance, shards=None, stage=None, enough=None
):
    """Start, kill and check again and again; return how many kills came between the begin and the end of a save.

    With ``shards``, a type of state dict, the processes share one model and save it so; with ``stage`` engines of
    DeepSpeed do.
    Stops before the last of ``kills`` when ``enough`` of them came there.
    """
    num_hits = 0
    for number in range(kills):
        before = read(project / "done")
        pids = savers.start(
            project=str(project),
            limit=limit,
            behind=behind,
            shards=shards,
            stage=stage,
            num_processes=num_processes,
        )
        end = time.monotonic() + START_S
        while read(project / "done") < before + 2:
            assert time.monotonic() < end, "the savers do not save"
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.04))
        chance.shuffle(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        savers.codes()
        num_hits += read(project / "asked") != read(project / "done")
        found = check(project, limit=limit, where=f"kill {number}")
        value = value_in(found.path)
        assert found.number == value, f"kill {number}: {found.path.name} holds the values of save {value}"
        if num_hits == enough:
            break
    return num_hits


def interrupt_at_every_call(runs, project, *, how, behind=False, name=None, counts_writes=True):
    """Interrupt a save at its first call, another at its second, and so on; return how many calls there are."""
    at = 0
    while True:
        at += 1
        (project / "outcome").unlink(missing_ok=True)
        options = {"project": str(project), "how": how, "behind": behind, "name": name}
        runs.start(num_processes=1, at=at, counts_writes=counts_writes, **options)
        [code] = runs.codes()
        if how == "kill" and code == -signal.SIGKILL:
            check(project, limit=1, name=name, where=f"call {at}")
            continue
        assert code == 0, f"after `{how}` at call {at} the run did not go on"
        check(project, limit=1, name=name, where=f"call {at}, {how}")
        assert len(os.listdir(project / "checkpoints")) == 1, f"after `{how}` at call {at} something is left"
        if json.loads((project / "outcome").read_text())["hit"] is None:
            return at - 1


def read(path):
    return int(path.read_text()) if path.exists() else -1


def check(project, *, limit, where, name=None):
    folder = project / "checkpoints"
    newest = find_newest(folder) if name is None else folder / name
    found = check_loadable(newest, verify=True)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every-call", action="store_true", help="no random instants, but every one")
    parser.add_argument("--sharded", action="store_true", help="two processes that share one model")
    parser.add_argument("--deepspeed", action="store_true", help="two processes with engines of DeepSpeed")
    options = parser.parse_args()
    if options.every_call:
        at_every_call()
        return
    chance = random.Random(options.seed)
    with Runs(SCRIPT) as savers:
        ways = [(*way, {}) for way in WAYS]
        if options.sharded:
            ways = [(2, 1, behind, {"shards": shards}) for shards, behind in SHARDED_WAYS]
        if options.deepspeed:
            ways = [(2, 1, behind, {"stage": stage}) for stage, behind in DEEPSPEED_WAYS]
        for number, (num_processes, limit, behind, kind_of_model) in enumerate(ways):
            kills = options.kills // len(ways) + (number < options.kills % len(ways))
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                hits = kill_during_saves(
                    savers,
                    Path(folder),
                    kills=kills,
                    num_processes=num_processes,
                    limit=limit,
                    behind=behind,
                    chance=chance,
                    **kind_of_model,
                )
            kind = "behind the loop" if behind else "blocking"
            kind += "".join(f", {name} {value}" for name, value in kind_of_model.items())
            print(
                f"{num_processes} process(es), total_limit={limit}, {kind}: {kills} kills, "
                f"{hits} of them inside a save, nothing lost ({time.monotonic() - begun:.0f} s)",
                flush=True,
            )


def at_every_call():
    with Runs(INTERRUPTED) as runs:
        for how in HOW:
            for behind, name in ((False, None), (True, None), (False, "last")):
                with tempfile.TemporaryDirectory() as folder:
                    num_calls = interrupt_at_every_call(runs, Path(folder), how=how, behind=behind, name=name)
                kind = "behind the loop" if behind else "blocking"
                place = "by number" if name is None else "under one name"
                print(f"{how} at each of {num_calls} calls, {kind}, {place}: nothing lost", flush=True)


if __name__ == "__main__":
    main()
