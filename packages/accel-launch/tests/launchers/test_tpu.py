from __future__ import annotations

import pytest

from accel_launch.launchers.selection import select_launcher
from accel_launch.launchers.tpu import TPULauncher
from accel_state.errors import ConfigError


def planned(request_for, *, kind="script", environ=None, config=None, **flags):
    request = request_for(
        "train.py", "--lr", "1", flags={"tpu": "true"} | flags, kind=kind, environ=environ, config=config
    )
    launcher = select_launcher(request)
    assert launcher.name == "tpu"
    plan = launcher.plan(request)
    (process,) = plan.processes
    return plan, process


def test_one_process_imports_xla_and_gets_the_function_and_the_script(request_for):
    _, process = planned(request_for)
    assert process.argv == (
        *("python", "-u", "-P", "-m", "accel_launch.xla_spawn"),
        *("--function=main", "--", "train.py", "--lr", "1"),
    )
    assert dict(process.environ) == {"PJRT_DEVICE": "TPU"}
    assert process.rank is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"main_training_function": "train"}, ["--function=train"]),
        ({"num_processes": "4"}, ["--num-processes=4"]),
        ({"kind": "module"}, ["--module"]),
    ],
)
def test_what_is_requested_reaches_the_program(request_for, flags, words):
    plan, process = planned(request_for, **flags)
    before_script = process.argv[: process.argv.index("--")]
    assert set(words) <= set(before_script)
    assert plan.num_ranks == int(flags.get("num_processes", plan.num_ranks))


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        ({"mixed_precision": "bf16"}, {}),
        (
            {"mixed_precision": "bf16", "downcast_bf16": "true"},
            {"XLA_DOWNCAST_BF16": "1", "ACCELERATE_DOWNCAST_BF16": "true"},
        ),
        ({"mixed_precision": "no"}, {}),
        ({"debug_mode": "true"}, {"ACCELERATE_DEBUG_MODE": "true"}),
    ],
)
def test_the_runtime_stores_bf16_only_if_that_was_requested(request_for, flags, variables):
    _, process = planned(request_for, **flags)
    precision = {"ACCELERATE_MIXED_PRECISION": flags["mixed_precision"]} if "mixed_precision" in flags else {}
    assert dict(process.environ) == {"PJRT_DEVICE": "TPU"} | precision | variables


def test_a_device_that_is_chosen_already_stays(request_for):
    _, process = planned(request_for, environ={"PJRT_DEVICE": "CPU"})
    assert "PJRT_DEVICE" not in process.environ


def test_a_rank_of_another_run_is_none_here(request_for):
    _, process = planned(request_for, environ={"TORCHELASTIC_RUN_ID": "x", "RANK": "1"})
    assert {"TORCHELASTIC_RUN_ID", "RANK"} <= set(process.unset)  # `torch_xla` would start nothing


def test_what_is_no_python_is_refused(request_for):
    with pytest.raises(ConfigError, match="`--no_python` cannot go with `--tpu`"):
        TPULauncher().plan(request_for(flags={"tpu": "true"}, kind="executable"))
