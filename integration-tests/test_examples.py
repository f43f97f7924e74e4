"""Every script under docs/examples runs; digits has tests of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from accel_state.testing import run_script

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
TESTED_ELSEWHERE = {"digits.py", "check_digits.py"}


def run(name, folder, *arguments):
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_every_example_is_run_by_a_test():
    assert {file.name for file in EXAMPLES.glob("*.py")} == {
        *TESTED_ELSEWHERE,
        "accumulation.py",
        "big_model.py",
        "communication_hooks.py",
        "local_sgd.py",
        "own_tracker.py",
        "preemption.py",
        "profiling.py",
    }


def test_a_big_model_writes_what_the_resident_one_writes(tmp_path):
    done = run("big_model.py", tmp_path, "--picture", "map.png")
    assert done.returncode == 0, done.stderr
    assert re.search(r"blocks\.11 +in the checkpoint", done.stdout)
    assert "It writes the tokens that the resident model writes" in done.stdout
    assert "Nothing was copied on disk" in done.stdout
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def launch(name, *arguments, num_processes=2, code=0):
    done = run_script(EXAMPLES / name, *arguments, num_processes=num_processes, timeout_s=180)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_accumulating_gives_the_weight_that_can_be_worked_out_by_hand(num_processes):
    """The mean of -4 x² over 1 … 8 is -102; times 0.02 is 2.04."""
    printed = launch("accumulation.py", num_processes=num_processes)
    assert [line.split()[-1] for line in printed.splitlines()] == ["2.04000"] * 3


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_preempted_run_goes_on_where_it_was(tmp_path, num_processes):
    """Bit for bit: the same weights as a run that nobody disturbed."""
    calm, torn = (tmp_path / name for name in ("calm", "torn"))
    launch("preemption.py", "--project_dir", str(calm), num_processes=num_processes)
    words = ("preemption.py", "--project_dir", str(torn), "--step_s", "0.02")
    printed = launch(*words, "--stop_at", "5", num_processes=num_processes, code=75)
    assert printed.startswith("saved to ")
    assert not (torn / "result.json").exists()
    assert launch(*words, num_processes=num_processes).startswith("going on in epoch")
    result, expected = (json.loads((folder / "result.json").read_text()) for folder in (torn, calm))
    assert result == expected


def test_every_rank_leaves_a_trace_of_each_cycle(tmp_path):
    printed = launch("profiling.py", "--output_dir", str(tmp_path))
    assert "aten::convolution" in printed
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"profile_0.json", "profile_0_1.json", "profile_1.json", "profile_1_1.json"}
    events = json.loads((tmp_path / "profile_1.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "aten::convolution" for event in events) == 3


@pytest.mark.parametrize("hook", ["no", "fp16", "power_sgd", "power_sgd in fp16"])
def test_training_succeeds_with_each_communication_hook(hook):
    printed = launch("communication_hooks.py", "--hook", hook)
    assert printed.startswith(f"{hook}: loss")
    assert float(printed.split()[-1]) < 0.1


def test_local_sgd_lets_ranks_drift_and_brings_them_together():
    drifted, loss = launch("local_sgd.py").splitlines()
    assert float(drifted.split()[6].rstrip(",")) > 0.01
    assert drifted.endswith("by 0.000 at the end")
    assert float(loss.split()[1]) < 1e-3


def test_an_own_tracker_hears_everything_and_all_ranks_stop_together(tmp_path):
    printed = launch("own_tracker.py", "--project_dir", str(tmp_path))
    epoch = int(printed.split()[-1])
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["config"] == {"rate": 0.1}
    assert best["loss"][1] == epoch
    (log,) = tmp_path.rglob("*.jsonl")
    assert [json.loads(line)["step"] for line in log.read_text().splitlines() if '"step"' in line] == list(
        range(epoch + 1)
    )
