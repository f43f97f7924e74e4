from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from accel_bigmodel import estimate_command, estimate_command_parser, gather_data
from accel_bigmodel.estimate.command import command
from accel_state.availability import is_transformers_available
from accel_state.errors import ConfigError

MODULE = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.body = nn.Linear(64, 64)
    def forward(self, tokens):
        return self.body(self.embed(tokens))
def number():
    return 3
"""


@pytest.fixture
def model_file(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_net", None)


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


def test_the_table_is_the_documented_one(model_file, capsys):
    assert run("own_net:Net", "--dtypes", "float32", "int4") == 0
    assert capsys.readouterr().out.splitlines() == [
        "┌────────────────────────────────────────────────────┐",
        "│       Memory Usage for loading `own_net:Net`       │",
        "├───────┬─────────────┬──────────┬───────────────────┤",
        "│ dtype │Largest Layer│Total Size│Training using Adam│",
        "├───────┼─────────────┼──────────┼───────────────────┤",
        "│float32│  250.0 KiB  │266.25 KiB│      1.04 MiB     │",
        "│  int4 │  31.25 KiB  │33.28 KiB │     133.12 KiB    │",
        "└───────┴─────────────┴──────────┴───────────────────┘",
    ]


def test_json_reports_bytes(model_file, capsys):
    run("own_net:Net", "--json", "--strategy", "zero3", "--num_processes", "4", "--batch_size", "2")
    answer = json.loads(capsys.readouterr().out)
    total = (1000 * 64 + 64 * 64 + 64) * 4
    assert answer["dtypes"]["float32"] == {
        "largest_layer": 256000, "total": total, "training_adam": 4 * total
    }  # fmt: skip
    assert answer["dtypes"]["int4"]["total"] == total // 8
    assert answer["training"]["parameters"] == answer["training"]["gradients"] == total // 4
    assert answer["running"] == {"batch_size": 2, "sequence_length": 512, "kv_cache": {}}


def test_text_reports_the_same(model_file, capsys):
    run("own_net:Net", "--strategy", "offload", "--batch_size", "1", "--sequence_length", "16")
    out = capsys.readouterr().out
    assert "Each of 1 with offload, float32, Adam: parameters 266.25 KiB" in out
    assert "on the host 798.75 KiB" in out
    assert "No KV cache: the model has no config that describes attention" in out


def test_what_is_no_model_is_refused(model_file):
    with pytest.raises(ConfigError, match="`own_net:Nothing` cannot be imported"):
        run("own_net:Nothing")
    with pytest.raises(ConfigError, match="made a int, not a torch module"):
        run("own_net:number")


def test_the_command_is_listed_without_torch():
    source = "import sys; from accel_bigmodel.estimate.command import command; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=180, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(not is_transformers_available(), reason="needs transformers")
def test_a_config_of_transformers_will_do(tmp_path, capsys):
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    run(str(tmp_path), "--json", "--batch_size", "3", "--sequence_length", "10")
    answer = json.loads(capsys.readouterr().out)
    assert answer["running"]["kv_cache"]["float16"] == 2 * 2 * 2 * 16 * 3 * 10 * 2
    run(str(tmp_path), "--batch_size", "3", "--sequence_length", "10")
    assert "KV cache in float16 (batch 3, 10 tokens): 7.5 KiB" in capsys.readouterr().out


LINEARS = """
from torch import nn
def net():
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
"""
TOTAL = 2 * (64 + 8) * 4


@pytest.fixture
def factory(tmp_path, monkeypatch):
    (tmp_path / "own_report_net.py").write_text(LINEARS)
    monkeypatch.chdir(tmp_path)
    yield "own_report_net:net"
    sys.modules.pop("own_report_net", None)


def test_rows_are_gathered_for_each_dtype(factory):
    args = argparse.Namespace(model_name=factory, dtypes=["float32", "float16", "int8"])
    full, half, eighth = gather_data(args)
    assert full[:3] == ["float32", TOTAL // 2, TOTAL]
    assert full[3] == {"model": TOTAL, "optimizer": 2 * TOTAL, "gradients": TOTAL, "step": 4 * TOTAL}
    assert half[1:3] == [TOTAL // 4, TOTAL // 2]
    assert half[3]["step"] == 2 * TOTAL
    assert eighth[3]["step"] == -1  # nobody trains in these
    rows = gather_data(argparse.Namespace(model_name=factory))
    assert [row[0] for row in rows] == ["float32", "float16", "int8", "int4"]


def test_the_parser_is_separate_or_among_others(factory, capsys):
    args = estimate_command_parser().parse_args([factory, "--dtypes", "float32"])
    args.func(args)
    alone = capsys.readouterr().out
    parser = argparse.ArgumentParser()
    estimate_command_parser(parser.add_subparsers())
    args = parser.parse_args(["estimate-memory", factory, "--dtypes", "float32"])
    args.func(args)
    assert capsys.readouterr().out == alone
    estimate_command(argparse.Namespace(model_name=factory, dtypes=["float32"]))
    assert capsys.readouterr().out == alone
    assert "float32" in alone
