"""Every script under docs/examples runs; digits has its own tests."""

import json
import math
import os
import re
import signal
from functools import partial
from pathlib import Path

import preloaded
import pytest
import torch
from recordings import assert_as_recorded
from safetensors.torch import load_file

from accel.utils import merge_fsdp_weights
from tools.harness.scripts import run_script, start_ranks, wait_for_ranks

pytestmark = pytest.mark.engine("long")

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
TESTED_ELSEWHERE = {"digits.py", "check_digits.py"}
run = partial(run_script, timeout_s=180, preload=preloaded.ACCEL)


def launch(name, *arguments, num_processes=2, code=0):
    done = run(EXAMPLES / name, *arguments, num_processes=num_processes)
    assert done.returncode == code, done.stderr
    assert_as_recorded(EXAMPLES / name, done.stdout)
    return done.stdout


def test_every_example_is_run_by_a_test():
    tests = "".join(
        (Path(__file__).parent / name).read_text() for name in ("test_examples.py", "test_more_examples.py")
    )
    found = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")} | {"own_strategy"}
    assert {name for name in found - TESTED_ELSEWHERE if f'"{name}"' not in tests} == set()


def big_model(folder):
    return launch("big_model.py", "--picture", str(folder / "map.png"), num_processes=1), folder / "map.png"


@pytest.mark.parametrize("outcome", [big_model], indirect=True)
def test_a_big_model_writes_what_the_resident_one_writes(outcome):
    printed, picture = outcome
    assert re.search(r"blocks\.11 +in the checkpoint", printed)
    assert "It writes the tokens that the resident model writes" in printed
    assert "Nothing was copied on disk" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def accumulation(folder):
    return {number: launch("accumulation.py", num_processes=number) for number in (1, 2, 4)}


@pytest.mark.parametrize("outcome", [accumulation], ids=[""], indirect=True)
@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_accumulating_gives_the_weight_that_can_be_worked_out_by_hand(outcome, num_processes):
    """The mean of -4 x² over 1 … 8 is -102; times 0.02 is 2.04."""
    weights = [line.split()[-1] for line in outcome[num_processes].splitlines()]
    assert weights == ["2.04000", "2.04000", "1.22000", "2.04000"]


def calm_and_torn(folder):
    """Train once undisturbed, and once in two runs, the first of which is requested to stop."""
    calm, torn = folder / "calm", folder / "torn"
    launch("preemption.py", "--project_dir", str(calm))
    words = ("preemption.py", "--project_dir", str(torn))
    slowly = ("--step_s", "0.02", "--stop_at", "5")
    stopped = launch(*words, *slowly, code=75)
    assert not (torn / "result.json").exists()
    went_on = launch(*words)
    return calm, torn, stopped, went_on


@pytest.mark.parametrize("outcome", [calm_and_torn], ids=[""], indirect=True)
def test_a_preempted_run_continues_where_it_was(outcome):
    """Bit for bit: the same weights as an undisturbed run."""
    calm, torn, stopped, went_on = outcome
    assert stopped.splitlines()[-1].startswith("saved to ")
    assert went_on.startswith("resuming in epoch")
    result, expected = (json.loads((folder / "result.json").read_text()) for folder in (torn, calm))
    assert result == expected


def profiling(folder):
    return launch("profiling.py", "--output_dir", str(folder)), folder


@pytest.mark.parametrize("outcome", [profiling], indirect=True)
def test_every_rank_leaves_a_trace_of_each_cycle(outcome):
    printed, folder = outcome
    assert "Self CPU time total" in printed
    names = {file.name for file in folder.iterdir()}
    assert names == {"profile_0.json", "profile_0_1.json", "profile_1.json", "profile_1_1.json"}
    events = json.loads((folder / "profile_1.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "aten::convolution" for event in events) == 3


HOOKS = ["fp16", "power_sgd in fp16"]


def communication_hooks(folder):
    return {hook: launch("communication_hooks.py", "--hook", hook) for hook in HOOKS}


@pytest.mark.parametrize("outcome", [communication_hooks], ids=[""], indirect=True)
@pytest.mark.parametrize("hook", HOOKS)
def test_training_succeeds_with_each_communication_hook(outcome, hook):
    printed = outcome[hook]
    assert printed.startswith(f"{hook}: loss")
    assert float(printed.split()[-1]) < 0.1


def local_sgd(folder):
    return launch("local_sgd.py")


@pytest.mark.parametrize("outcome", [local_sgd], indirect=True)
def test_local_sgd_lets_ranks_drift_and_brings_them_together(outcome):
    *steps, drifted, _ = outcome.splitlines()
    together = {int(re.search(r"\d+", line)[0]) for line in steps if line.endswith("apart by 0.000")}
    assert together == {8, 16, 24, 32}
    assert float(drifted.split()[6].rstrip(",")) > 0.01
    assert drifted.endswith("by 0.000 at the end")


def own_tracker(folder):
    return launch("own_tracker.py", "--project_dir", str(folder)), folder


@pytest.mark.parametrize("outcome", [own_tracker], indirect=True)
def test_an_own_tracker_receives_everything_and_all_ranks_stop_together(outcome):
    printed, folder = outcome
    epoch = int(re.search(r"stopped after epoch (\d+)", printed)[1])
    best = json.loads((folder / "best.json").read_text())
    assert best["config"] == {"rate": 0.1}
    assert best["loss"][1] == epoch
    (log,) = folder.rglob("*.jsonl")
    assert [json.loads(line)["step"] for line in log.read_text().splitlines() if '"step"' in line] == list(
        range(epoch + 1)
    )


SMALL = ("--width", "32", "--num_blocks", "2", "--batch_size", "4", "--steps", "6")


def sharded(folder):
    """Train without a stop, and as DDP; and stopped on two ranks and resumed on four, then merged."""
    torn, picture = folder / "torn", folder / "memory.png"
    printed = {
        "calm": launch("sharded.py", "--project_dir", str(folder / "calm"), *SMALL),
        "ddp": launch("sharded.py", "--project_dir", str(torn), "--ddp", *SMALL),
        "stopped": launch("sharded.py", "--project_dir", str(torn), "--stop_after", "3", *SMALL),
        "went on": launch(
            "sharded.py", "--project_dir", str(torn), "--picture", str(picture), *SMALL, num_processes=4
        ),
    }
    for run, checkpoint in ((torn, "checkpoint_1"), (folder / "calm", "checkpoint_0")):
        parts = run / "sharded" / "checkpoints" / checkpoint / "pytorch_model_fsdp_0"
        merge_fsdp_weights(parts, run / "merged")
    printed["written"] = launch(
        "generate_text.py", str(torn / "merged"), "--num_tokens", "20", num_processes=1
    )
    return printed, folder


@pytest.mark.parametrize("outcome", [sharded], ids=[""], indirect=True)
def test_a_sharded_run_resumed_on_more_ranks_is_the_one_that_was_not_stopped(outcome):
    """Sums have another order on four ranks; Adam enlarges that where gradients are near 0 (biases of keys: 2e-6)."""
    printed, folder = outcome
    assert printed["went on"].startswith("resuming after step 3, on 4 ranks\n")
    calm, torn = (load_file(folder / run / "merged" / "model.safetensors") for run in ("calm", "torn"))
    assert list(calm) == list(torn)
    for name, value in calm.items():
        torch.testing.assert_close(torn[name], value, rtol=0, atol=1e-5)
    for line in ("calm", "ddp"):
        assert math.isclose(last_loss(printed[line]), last_loss(printed["went on"]), rel_tol=1e-4)
    assert printed["written"].startswith("def ")


def last_loss(printed):
    (line,) = (line for line in printed.splitlines() if line.startswith("step 6: loss "))
    return float(line.split()[-1])


@pytest.mark.parametrize("outcome", [sharded], ids=[""], indirect=True)
def test_a_rank_of_a_sharded_run_needs_a_part_of_the_memory(outcome):
    _, folder = outcome
    memory = json.loads((folder / "torn" / "memory.json").read_text())
    whole = memory.pop("ddp, 2 ranks")
    assert list(memory) == ["sharded, 2 ranks", "sharded, 4 ranks"]
    for sizes, num in zip(memory.values(), (2, 4), strict=True):
        for part in ("parameters", "gradients", "optimizer"):
            assert math.isclose(sizes[part], whole[part] / num, rel_tol=0.05)
        assert sizes["peak"] < whole["peak"]
    assert (folder / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_a_sharded_run_that_is_requested_to_stop_saves_and_leaves(tmp_path):
    words = ("--project_dir", tmp_path, *SMALL, "--steps", "10000")
    script = [EXAMPLES / "sharded.py", *map(str, words)]
    with start_ranks(script, 2, preload=preloaded.ACCEL) as ranks:
        ranks[0].wait_for_output("step 20: loss", timeout_s=240)
        os.kill(ranks[1].process.pid, signal.SIGTERM)
        assert wait_for_ranks(ranks) == 75
        assert "saved to " in ranks[0].stdout
    assert (tmp_path / "sharded" / "checkpoints" / "checkpoint_0").is_dir()


def test_an_early_error_of_a_sharded_run_is_reported(tmp_path):
    words = ("--project_dir", str(tmp_path), *SMALL, "--batch_size", "100000")
    done = run(EXAMPLES / "sharded.py", *words)
    assert done.returncode == 1  # not killed by a signal, though its memory was being recorded
    assert "lower --batch_size" in done.stderr


@pytest.mark.engine("deepspeed")
def test_a_run_under_zero_3_continues_on_one_rank_and_leaves_plain_weights(tmp_path):
    project = ("--project_dir", str(tmp_path))
    assert "step 30: loss" in launch("deepspeed_zero3.py", "--stop_after", "30", *project)
    assert "resuming after step 30, on 1 ranks" in launch("deepspeed_zero3.py", *project, num_processes=1)
    found = re.search(r"right in (\d+)%", launch("deepspeed_zero3.py", "--check", *project, num_processes=1))
    assert int(found[1]) > 80  # half of them by chance


def distributed_inference(folder):
    return [launch("distributed_inference.py", num_processes=number) for number in (1, 3)]


@pytest.mark.parametrize("outcome", [distributed_inference], ids=[""], indirect=True)
def test_shares_and_stages_give_the_scores_of_one_process(outcome):
    alone, shared = ([line.split()[-2:] for line in printed.splitlines()[1:]] for printed in outcome)
    assert len(alone) == 7  # which 3 processes do not share evenly
    for (one, _), (first, second) in zip(alone, shared, strict=True):
        assert float(first) == pytest.approx(float(one), abs=2e-4)
        assert float(second) == pytest.approx(float(one), abs=2e-4)


def every_axis(folder):
    """Train in layouts of two ranks; those that are left to the script are launched by it."""
    options = ("--project_dir", str(folder), "--steps", "4")
    layouts = ("tp2", "cp2", "sp2", "pp2", "ep2")
    launch("every_axis.py", "--layout", "experts", *options, num_processes=1)
    for layout in layouts:
        launch("every_axis.py", "--layout", layout, *options, num_processes=2)
    picture = folder / "curves.png"
    words = (*options, "--picture", str(picture), "--layouts", *layouts)
    done = run(EXAMPLES / "every_axis.py", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout, picture


@pytest.mark.parametrize("outcome", [every_axis], ids=[""], indirect=True)
def test_one_model_has_the_same_losses_in_every_layout(outcome):
    printed, picture = outcome
    _, *lines = printed.splitlines()
    differences = {line.split()[0]: float(line.split()[-1]) for line in lines}
    assert set(differences) == {"one", "tp2", "cp2", "sp2", "pp2", "experts", "ep2"}
    assert max(differences.values()) < 1e-5  # sums have another order
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "words",
    [
        ("communication_hooks.py",),
        ("local_sgd.py",),
        ("own_tracker.py",),
        ("sharded.py", *SMALL),
    ],
    ids=lambda words: words[0],
)
def test_examples_about_several_ranks_run_on_one_too(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they write by default
    assert launch(*words, num_processes=1)


def test_an_example_for_one_process_writes_the_same_on_two():
    printed = launch("big_model.py")
    half = len(printed) // 2
    assert printed[:half] == printed[half:]
    assert "It writes the tokens that the resident model writes" in printed


def test_a_share_of_four_batches_is_refused_where_it_cannot_be_even(tmp_path):
    done = run(EXAMPLES / "accumulation.py", num_processes=3)
    assert done.returncode == 1
    assert "Start 1, 2 or 4." in done.stderr
