"""No checkpoint is lost, whenever ranks are killed and whichever call into the file system fails on whichever rank.

The tests of accel-checkpoint kill, fail and interrupt one process at each call of a save.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from preloaded import SAVING
from safetensors.torch import load_file
from storage_faults import Faults
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_backends.strategies.deepspeed.checkpoints.saved_engine import SavedEngine
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.formats.distributed import DistributedState
from accel_checkpoint.listing import check_loadable, find_newest
from accel_checkpoint.manifest import read_manifest, saved_files
from accel_checkpoint.tensors import fetched
from accel_state.errors import AccelError, CheckpointError
from tools.harness.scripts import start_ranks

SCRIPT = Path(__file__).with_name("save_forever.py")
REPEATS = int(os.environ.get("ACCEL_TEST_REPEATS", "1"))
START_S = 180

pytestmark = [
    pytest.mark.engine("long"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds the names of open files in /proc"),
]
DEEPSPEED = pytest.mark.engine("deepspeed")
SHARDED, FULL = "SHARDED_STATE_DICT", "FULL_STATE_DICT"
WAYS_TO_SAVE = [
    # every pair of processes, `total_limit` and whether the save runs in the background
    {"num_processes": 1, "limit": 1, "behind": False},
    {"num_processes": 1, "limit": 2, "behind": True},
    {"num_processes": 2, "limit": 1, "behind": True},
    {"num_processes": 2, "limit": 2, "behind": False},
    {"num_processes": 2, "limit": 1, "behind": False, "shards": SHARDED},
    {"num_processes": 2, "limit": 1, "behind": True, "shards": SHARDED},
    {"num_processes": 2, "limit": 1, "behind": False, "shards": FULL},
    pytest.param({"num_processes": 2, "limit": 1, "behind": True, "stage": 2}, marks=DEEPSPEED),
    pytest.param({"num_processes": 2, "limit": 1, "behind": False, "stage": 3}, marks=DEEPSPEED),
]


def number_in(path: Path) -> int:
    return int(path.read_text()) if path.exists() else -1


def value_in(checkpoint: Path) -> int:
    """Return the value that all weights of a checkpoint have."""
    if (checkpoint / "pytorch_model_fsdp_0").is_dir():
        saved = DistributedState(saved_files(checkpoint), "pytorch_model_fsdp_0")
        weights = [saved.value(one) for one in saved.entries.values()]
    elif (checkpoint / "pytorch_model").is_dir():
        engine = SavedEngine(saved_files(checkpoint), "pytorch_model").weights()
        weights = [fetched(one) for one in engine.values()]
    else:
        weights = [*load_file(checkpoint / "model.safetensors").values()]
    (value,) = {value.item() for one in weights for value in one.unique()}
    return int(value)


@pytest.mark.parametrize("way", WAYS_TO_SAVE, ids=lambda way: " ".join(map(str, way.values())))
def test_nothing_is_lost_when_a_save_is_killed(tmp_path, way):
    """Kill at random instants; a look at the disk finds a complete save, at most one older than the last requested."""
    chance, num_hits = random.Random(str(way)), 0
    options = {name: value for name, value in way.items() if name != "num_processes"}
    argv = [SCRIPT, json.dumps({"project": str(tmp_path), **options})]
    preload = (*(["deepspeed"] if "stage" in way else []), *SAVING)
    for _ in range(7 * REPEATS):
        before = number_in(tmp_path / "done")
        with start_ranks(argv, way["num_processes"], preload=preload) as ranks:
            end = time.monotonic() + START_S
            while number_in(tmp_path / "done") < before + 2:
                assert time.monotonic() < end, "the savers do not save"
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.04))
            for rank in chance.sample(ranks, len(ranks)):
                rank.process.kill()
        asked = number_in(tmp_path / "asked")
        num_hits += asked != number_in(tmp_path / "done")
        newest = check_loadable(find_newest(tmp_path / "checkpoints"), verify=True)
        assert newest.number == value_in(newest.path) >= asked - 1
        # The newest may be there while the oldest is not yet gone.
        assert len([*(tmp_path / "checkpoints").glob("checkpoint_*")]) <= way["limit"] + 1
        if num_hits == 2 * REPEATS:
            break
    assert num_hits > 0  # some came inside a save, or nothing was tried


def prepared(folders: ProjectConfiguration, *more: Any) -> tuple[Any, ...]:
    """Return an Accelerator and a model whose optimizer has a state."""
    accelerator, model = Accelerator(cpu=True, project_config=folders), nn.Linear(8, 8)
    model, optimizer, *more = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), *more)
    accelerator.backward(model(torch.ones(2, 8)).sum())
    optimizer.step()
    return accelerator, model


def fill(model: Any, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def fail_saves(project: Path, mode: str, error: str, goes_on: bool, sample: int) -> tuple[int, list[str]]:
    """Fail ``sample`` calls on each rank; return how many, and what was wrong then.

    After each fault every rank must have raised an error that names it, or all must have saved; the earlier checkpoint
    is complete; and the next save works, after which no temporary folder is left.
    """
    is_numbered = mode != "replace"
    place = project / ("checkpoints" if is_numbered else ".")
    folders = ProjectConfiguration(project_dir=str(project), automatic_checkpoint_naming=is_numbered)
    folders.total_limit = 2 if is_numbered else None
    accelerator, model = prepared(folders)
    rank, num_ranks, values = accelerator.process_index, accelerator.num_processes, itertools.count(1.0)

    def save() -> tuple[float, str | None]:
        value = next(values)
        fill(model, value)
        try:
            target = None if is_numbered else project / "last"
            saved = accelerator.save_state(target, blocking=mode != "background")
            if mode == "background":
                saved.wait()
        except (AccelError, OSError) as raised:
            return value, str(raised)
        return value, None

    def together(one: Any) -> list[Any]:
        ones = [None] * num_ranks
        dist.all_gather_object(ones, one)
        return ones

    chance, problems, num_cases = random.Random(f"1{mode}{error}"), [], 0
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faults = Faults(patch, project, error)
        faults.watch_changes()
        save()
        for victim in range(num_ranks):
            faults.arm(10**9, goes_on=goes_on)
            save()
            num_calls = together(faults.count)[victim]
            faults.disarm()
            for at in sorted(chance.sample(range(1, num_calls + 1), min(sample, num_calls))):
                before = together(values_in(place) if rank == 0 else None)[0]
                if rank == victim:
                    faults.arm(at, goes_on=goes_on)
                value, raised = save()
                hit = faults.hit if rank == victim else None
                faults.disarm()
                hit, texts = together(hit)[victim], together(raised)
                if not hit:
                    break
                num_cases += 1
                after = together(values_in(place) if rank == 0 else None)[0]
                case = f"at `{hit}`, call {at} of rank {victim}: {texts}, {after}"
                problems += [f"{case}: {one}" for one in wrong(value, before, after, texts, faults.error)]
                value, raised = save()
                texts, left = together(raised), [*place.glob(".tmp*")]
                if any(texts) or value not in values_in(place).values() or (rank == 0 and left):
                    problems.append(f"{case}: the next save: {texts}, left over: {left}")
    return num_cases, problems


def wrong(value: float, before: Any, after: Any, texts: list[str | None], error: int) -> Iterator[str]:
    """Yield what is wrong after a fault; ``before`` and ``after`` are the values of the checkpoints by their names."""
    is_there = value in after.values()
    reasons = [text for text in texts if text is not None]
    if len(reasons) not in (0, len(texts)):
        yield "some ranks raise, others do not"
    if not all(os.strerror(error) in text for text in reasons):
        yield "the fault is not named"
    if any(nonsense in text for nonsense in ("enforce fail", "unexpected pos") for text in reasons):
        yield "the error does not say what has happened"
    if any(isinstance(one, str) for one in after.values()):
        yield "a checkpoint is damaged"
    if not reasons and not is_there:
        yield "the checkpoint is not there"
    may_be_there = any(words in text for words in ("is saved, but", "may be saved") for text in reasons)
    if reasons and is_there and not may_be_there:
        yield "the checkpoint is there all the same"
    if not is_there and after != before:
        yield "an earlier checkpoint has changed"


def values_in(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for folder in place.iterdir():
        if folder.is_dir() and not folder.name.startswith("."):
            problems = SavedFiles(folder, read_manifest(folder).files_here).problems(digests=True)
            found[folder.name] = str(problems) if problems else value_in(folder)
    return found


@pytest.mark.parametrize(
    ("mode", "error", "goes_on"), [("replace", "EIO", False), ("background", "ENOSPC", True)]
)
def test_a_call_that_fails_on_one_rank_is_named_on_all_and_loses_nothing(
    world, tmp_path, mode, error, goes_on
):
    ranks = world(2).run(fail_saves, tmp_path, mode, error, goes_on, 4 * REPEATS, timeout_s=200)
    num_cases, problems = ranks[0]
    assert num_cases >= 8
    assert problems == []


def fail_reads(folder: Path) -> int:
    """Fail each call of a load; return how many.

    Each load has either loaded the newest checkpoint, or raised an error that names the error of the system and does
    not call the checkpoint damaged, incomplete or missing. Nothing older is loaded.
    """
    project = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True)
    accelerator, model = prepared(project, torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2))
    for value in (1, 2):
        fill(model, value)
        accelerator.save_state()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faults = Faults(patch, folder, "ESTALE")
        faults.watch_reads()
        for at in itertools.count(1):
            fill(model, -1)
            outcome = ""
            faults.arm(at)
            try:
                accelerator.load_state()
            except (CheckpointError, OSError) as error:
                outcome = f"{type(error).__name__}: {error}"
            faults.disarm()
            if not faults.hit:
                return at - 1
            values = {value for one in model.parameters() for value in one.flatten().tolist()}
            is_right = os.strerror(faults.error) in outcome if outcome else values == {2}
            names = (
                "damaged",
                "incomplete",
                "missing",
                "Copy or save it again",
                "no checkpoint",
                "cut short",
            )
            if not is_right or any(name in outcome for name in names):
                raise AssertionError(f"{faults.hit}: {outcome or f'loaded {values}'}")
    raise AssertionError


def test_whichever_read_fails_the_newest_is_loaded_or_the_error_named(world, tmp_path):
    (num_calls,) = world(1).run(fail_reads, tmp_path.resolve())
    assert num_calls >= 20
