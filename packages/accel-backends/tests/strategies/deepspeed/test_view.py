import json
import subprocess
import sys

import pytest

from accel_backends.strategies.deepspeed.view import show
from accel_state.errors import ConfigError


def rows(**given):
    return {key: (value, by) for key, value, by in show(given)}


def test_without_a_file_the_settings_make_the_config():
    seen = rows(deepspeed_zero_stage=(3, "`--zero_stage`"), gradient_clipping=(0.5, "`x` in `c.yaml`"))
    assert seen["zero_optimization.stage"] == ("3", "`--zero_stage`")
    assert seen["gradient_clipping"] == ("0.5", "`x` in `c.yaml`")
    assert seen["zero_optimization.offload_param.device"] == ("none", "default")
    assert seen["steps_per_print"] == ("inf", "default: never")


def test_a_file_is_filled_as_far_as_it_is_known(tmp_path):
    file = tmp_path / "ds.json"
    auto = dict.fromkeys(("train_batch_size", "gradient_clipping"), "auto")
    file.write_text(
        json.dumps(
            {
                "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
                "bf16": {"enabled": True},
                "train_micro_batch_size_per_gpu": 4,
                "optimizer": {"type": "auto", "params": {"lr": "auto"}},
                **auto,
            }
        )
    )
    seen = rows(
        deepspeed_config_file=(str(file), "`--deepspeed_config_file`"),
        num_processes=(8, "`--num_processes`"),
        parallelism_sp_size=(2, "x"),
    )
    assert seen["zero_optimization.stage"] == ("2", f"`{file}`")
    assert seen["bf16.enabled"] == ("true", f"`{file}`")
    assert seen["gradient_clipping"] == ("0.0", "default: off")
    assert seen["train_batch_size"][0] == "16"
    assert seen["optimizer.params.lr"] == ("auto", "not known yet: needs a `DummyOptim` in `prepare`")
    assert seen["optimizer.type"] == ("auto", "nobody: write the value")
    assert seen["zero_optimization.reduce_bucket_size"][1].startswith("not known yet: needs a model")


def test_the_flag_or_the_file_sets_the_tp_ranks(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}))
    arguments = {"deepspeed_config_file": (str(file), "x"), "num_processes": (8, "x")}
    seen = rows(**arguments, parallelism_tp_size=(2, "`--tp`"))
    assert seen["tensor_parallel.autotp_size"] == ("2", "`--tp`")
    assert seen["train_batch_size"][0] == "16"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tensor_parallel": {"autotp_size": 4}}))
    assert rows(**arguments)["train_batch_size"][0] == "8"
    with pytest.raises(ConfigError, match="`tensor_parallel.autotp_size` is 4 by .*, but 2 by `--tp`"):
        rows(**arguments, parallelism_tp_size=(2, "`--tp`"))


def test_contradictions_are_reported_here_too(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    with pytest.raises(ConfigError, match="`zero_optimization.stage` is 2 by .*, but 3 by `--zero_stage`"):
        rows(deepspeed_config_file=(str(file), "x"), deepspeed_zero_stage=(3, "`--zero_stage`"))


def test_nothing_of_it_imports_torch():
    program = "import sys, accel_backends.strategies.deepspeed.view; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
