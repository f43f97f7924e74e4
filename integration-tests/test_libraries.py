"""Libraries that import `accelerate` train on accel, as they are, in one and in two processes."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from statistics import fmean

import pytest

from accel_state.testing.scripts import run_command

pytestmark = pytest.mark.engine("libraries")

SCRIPTS = Path(__file__).with_name("libraries")
LONG = {"max_steps": 12}
FSDP2 = {
    "fsdp": "full_shard",
    "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
}


def losses_of(script: str, folder: Path, *, num_processes: int = 1, **settings: object) -> list[float]:
    """Run a script of `libraries` and return the losses that it prints."""
    folder.mkdir(exist_ok=True)
    begin = (
        ["-m", "accel.drop_in"]
        if num_processes == 1
        else ["-m", "accel_launch", "launch", "--cpu", f"--num_processes={num_processes}", "--drop_in"]
    )
    done = run_command(
        [sys.executable, *begin, str(SCRIPTS / script), str(folder), json.dumps(settings)],
        cwd=folder,
        env={"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        timeout_s=400,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOSSES ")]
    return json.loads(line.removeprefix("LOSSES "))


def is_falling(losses: list[float]) -> bool:
    """Tell whether the last third of losses is below the first."""
    third = len(losses) // 3
    return fmean(losses[-third:]) < fmean(losses[:third])


def test_the_trainer_of_transformers_equals_itself_on_any_number_of_processes(tmp_path):
    alone = losses_of("trainer.py", tmp_path / "alone", per_device_train_batch_size=8, **LONG)
    assert is_falling(alone)
    together = losses_of("trainer.py", tmp_path / "two", num_processes=2, **LONG)
    assert together == pytest.approx(alone, abs=1e-4)
    sharded = losses_of("trainer.py", tmp_path / "sharded", num_processes=2, **LONG, **FSDP2)
    assert sharded == pytest.approx(together, abs=1e-5)


def test_the_trainer_resumes_adapters_where_it_stopped(tmp_path):
    whole = losses_of("trainer.py", tmp_path, lora=True)
    resumed = losses_of("trainer.py", tmp_path, lora=True, resume=str(tmp_path / "checkpoint-2"))
    assert resumed == whole  # those before the interruption are in its checkpoint


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("script", ["fine_tuning.py", "diffusion.py", "sentences.py"])
def test_a_library_trains(tmp_path, script, num_processes):
    losses = losses_of(script, tmp_path, num_processes=num_processes)
    assert is_falling(losses)


def test_all_that_libraries_use_of_accelerate_is_there(tmp_path):
    environ = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "accel.drop_in", str(SCRIPTS / "names.py")]
    done = run_command(command, env=environ, timeout_s=400)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["num_names"] > 80
    assert (found["missing"], found["missing_of_accelerator"]) == ([], [])
    listed = tomllib.loads((SCRIPTS / "private_names.toml").read_text(encoding="utf-8"))
    assert set(found["private"]) <= set(listed)
