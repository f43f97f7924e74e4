"""Each package separately: installed from its wheel with what it declares, it does its main job with plain PyTorch."""

import json
import os
import re
import subprocess
from importlib.metadata import distributions

import pytest
from reference_pages import installed_with

from tools.environments import Environment
from tools.workspace import ROOT, read_packages, requirement_name

pytestmark = pytest.mark.engine("alone")

CLIENTS = ROOT / "integration-tests" / "alone"
OTHERS = {"accel-backends": {"delayed-averaging"}}


def environment_of(package):
    return Environment(f"alone.{package}")


def run(package, *words, folder, program="python", fails=False):
    """Run a program of the package's environment in an empty folder and return what it prints."""
    environment = environment_of(package)
    environ = environment.child_environ() | {"HF_HOME": str(folder)}
    command = [environment.program(program), *words]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode != 0) == fails, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def torchrun(package, number, script, *words, folder, fails=False):
    options = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(number)]
    return run(package, *options, CLIENTS / script, *words, folder=folder, fails=fails)


@pytest.mark.parametrize("package", read_packages())
def test_nothing_is_installed_but_what_the_table_of_dependencies_names(package):
    (site_packages,) = environment_of(package).folder.glob("lib/python*/site-packages")
    installed = {requirement_name(each.name): each for each in distributions(path=[str(site_packages)])}
    expected = installed_with(package) | OTHERS.get(package, set())
    assert expected <= installed.keys()
    assert installed.keys() <= expected | brought_by("torch", installed)


def brought_by(name, installed):
    """Return ``name`` and the installed distributions that it requires, directly or not."""
    required = {requirement_name(each) for each in installed[name].requires or ()} & installed.keys()
    return {name}.union(*(brought_by(each, installed) for each in required))


def test_processes_share_prompts_and_take_turns(tmp_path):
    (tmp_path / "two").mkdir()
    printed = torchrun("accel-state", 2, "state.py", "two", folder=tmp_path)
    assert printed == "5 answers from 2 on cpu\n"
    assert run("accel-state", CLIENTS / "state.py", ".", folder=tmp_path) == "5 answers from 1 on cpu\n"


def test_three_ranks_gather_reduce_and_agree_on_a_batch_size(tmp_path):
    assert torchrun("accel-ops", 3, "ops.py", folder=tmp_path) == "3 ranks, mean loss 1.00, batches of 16\n"


def test_an_epoch_that_stops_in_the_middle_continues_with_more_ranks(tmp_path):
    assert (
        torchrun("accel-data", 2, "data.py", ".", "stop", folder=tmp_path) == "48 samples seen on 2 ranks\n"
    )
    assert torchrun("accel-data", 3, "data.py", ".", folder=tmp_path) == "101 samples seen on 3 ranks\n"


def test_killed_training_resumes_on_more_ranks_and_ends_as_if_nothing_had_happened(tmp_path):
    torchrun("accel-checkpoint", 2, "checkpoint.py", "killed", "--die_at", "25", folder=tmp_path, fails=True)
    start, resumed = torchrun("accel-checkpoint", 3, "checkpoint.py", "killed", folder=tmp_path).split(":")
    assert start == "from step 20 on 3 ranks"
    _, undisturbed = torchrun("accel-checkpoint", 2, "checkpoint.py", "undisturbed", folder=tmp_path).split(
        ":"
    )
    assert resumed == undisturbed
    names = sorted(path.name for path in (tmp_path / "killed").iterdir())
    assert names == ["checkpoint_30", "checkpoint_40"]


def test_a_strategy_of_another_package_trains_like_ours(tmp_path):
    printed = [
        torchrun("accel-backends", 2, "backends.py", name, folder=tmp_path)
        for name in ("delayed_averaging", "ddp")
    ]
    printed.append(run("accel-backends", CLIENTS / "backends.py", "single", folder=tmp_path))
    starts, totals = zip(*(line.rstrip().split(": ") for line in printed), strict=True)
    assert starts == ("delayed_averaging on 2", "ddp on 2", "single on 1")
    assert len(set(totals)) == 1


def test_a_model_runs_with_most_of_its_weights_on_disk(tmp_path):
    printed = run("accel-bigmodel", CLIENTS / "bigmodel.py", ".", folder=tmp_path)
    assert re.fullmatch(r"[4-7] of 8 blocks on disk\n", printed)


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_is_logged_once_by_two_trackers(tmp_path, number):
    torchrun("accel-trackers", number, "trackers.py", ".", folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "fit" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["values"]["loss"] for line in lines]
    assert len(losses) == 10
    assert json.loads((tmp_path / "best.json").read_text()) == {"loss": losses[-1]}


def test_a_script_without_accel_is_launched_on_two_processes(tmp_path):
    words = ["launch", "--cpu", "--num_processes", "2", str(CLIENTS / "launch.py"), "--num_processes", "3"]
    printed = run("accel-launch", *words, folder=tmp_path, program="accel")
    assert printed == "2 ranks, arguments ['--num_processes', '3'], modules of accel: []\n"


@pytest.mark.parametrize("number", [1, 2])
def test_the_umbrella_trains_tracks_and_saves(tmp_path, number):
    words = ["launch", "--cpu", "--num_processes", str(number), str(CLIENTS / "umbrella.py"), "."]
    assert run("accel", *words, folder=tmp_path, program="accel") == f"trained on {number}\n"
    assert os.listdir(tmp_path / "state")
