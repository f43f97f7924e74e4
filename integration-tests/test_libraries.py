"""Libraries that import `accelerate` train on accel, as they are, in one and in two processes."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from both_sides import (
    IMPORTED_WITH,
    SCRIPTS,
    found_by,
    largest_difference,
    on_both_sides,
    reported,
)

from tools.harness.scripts import run_command

pytestmark = pytest.mark.engine("libraries")
ENVIRON = {**IMPORTED_WITH, "OMP_NUM_THREADS": "1"}


@pytest.fixture(params=[1, 2], ids=["one process", "two processes"])
def num_processes(request: pytest.FixtureRequest) -> int:
    """Return in how many processes a script runs."""
    return request.param


def launched(script: str, folder: Path, *names: str) -> dict[str, Any]:
    """Return the losses of a script that the command starts in two processes."""
    words = ["-m", "accel_launch", "launch", "--cpu", "--num_processes=2", "--drop_in"]
    done = run_command(
        [sys.executable, *words, str(SCRIPTS / f"{script}.py"), str(folder), *names],
        env=ENVIRON,
        timeout_s=400,
    )
    return reported(done)


def beside(script: str, folder: Path, *, num_processes: int) -> dict[str, Any]:
    """Return the losses of a script on accel, which are those under Accelerate to the last digit."""
    ours, theirs = on_both_sides(script, folder, num_processes=num_processes)
    assert largest_difference(ours, theirs)[0] == 0
    return ours


def is_falling(losses: Sequence[float]) -> bool:
    """Return whether the last third of losses is below the first."""
    third = len(losses) // 3
    return fmean(losses[-third:]) < fmean(losses[:third])


def test_the_trainer_of_transformers(tmp_path):
    names = ("plain", "adapters", "8 bits", "4 bits")
    alone = found_by("trainer", tmp_path / "alone", *names, "evaluated", "evaluated, offloaded")
    together = launched("trainer", tmp_path, *names)
    for found in alone, together:
        for name in ("plain", "8 bits", "4 bits"):
            assert is_falling(found[name]["losses"])
        assert found["adapters"]["losses"] == found["adapters"]["more"]  # resumed, dropout included
    assert together["plain"]["losses"] == pytest.approx(alone["plain"]["losses"], abs=1e-4)
    whole, offloaded = (alone[name]["history"][0] for name in ("evaluated", "evaluated, offloaded"))
    assert whole["eval_loss"] == offloaded["eval_loss"]  # half of the second model is on the disk


def test_trl_fine_tunes(tmp_path, num_processes):
    found = beside("fine_tuning", tmp_path, num_processes=num_processes)
    assert is_falling(found["supervised"])
    assert is_falling(found["preferences"])
    assert any(found["rewards"])
    assert any(found["policy"])


def test_sentence_transformers_trains(tmp_path, num_processes):
    assert is_falling(beside("sentences", tmp_path, num_processes=num_processes)["train"])


def test_diffusers_offloads(tmp_path):
    found = found_by("offloading", tmp_path)
    for name in ("enable_model_cpu_offload", "enable_sequential_cpu_offload"):
        # Hooks hold for more than one call. A weight in other memory may be multiplied in another order.
        assert found[name] == pytest.approx(found["whole"] * 2, rel=1e-5, abs=1e-6)


def test_peft_merges_adapters_into_offloaded_models_and_saves_them(tmp_path):
    found = dict(found_by("merging", tmp_path))
    assert found.pop("adapter")[0] > 0.01
    assert len(found) == 6  # offloaded in three ways, each used where it is stored and in a copy
    for name, differences in found.items():
        # As loaded, merged, unmerged, merged for good, saved and loaded again.
        assert differences == pytest.approx([0] * 5, abs=1e-5), name


def test_pytorch_accelerated_trains_measures_and_resumes(tmp_path, num_processes):
    found = beside("loops", tmp_path, num_processes=num_processes)
    assert is_falling(found["train"])
    for name in ("train", "evaluated", "accuracy"):
        assert found[f"{name}, resumed"] == found[name][2:]
    assert set(found["rows"]) == {14}  # padding is not counted


def test_an_evaluation_harness_finds_the_same_on_any_number_of_processes(tmp_path):
    alone, together = (beside("evaluation", tmp_path / str(n), num_processes=n) for n in (1, 2))
    assert {name: len(values) for name, values in alone.items()} == {
        "choice": 3,
        "perplexity": 2,
        "generation": 2,
    }
    for name, values in alone.items():
        assert together[name] == pytest.approx(values)
        assert values[-1] == 7  # samples


def test_all_that_libraries_use_of_accelerate_is_there():
    command = [sys.executable, "-m", "accel.drop_in", str(SCRIPTS / "names.py")]
    done = run_command(command, env=ENVIRON, timeout_s=400)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["num_names"] > 80
    assert (found["missing"], found["missing_of_accelerator"]) == ([], [])
    listed = tomllib.loads((SCRIPTS / "private_names.toml").read_text(encoding="utf-8"))
    assert set(found["private"]) <= set(listed)
