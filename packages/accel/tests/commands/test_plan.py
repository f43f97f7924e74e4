from __future__ import annotations

import json
import re
import sys

import pytest

from accel_launch.cli import main
from accel_state.availability import is_transformers_available

MODULE = """
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(33, 33)
    def forward(self, hidden):
        return hidden + self.layer(hidden)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 33)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.blocks.requires_grad_(False)
        self.norm = nn.LayerNorm(33)
        self.head = nn.Linear(33, 50, bias=False)
        self.register_buffer("mask", self.norm.weight.new_zeros(7))
"""
SHARED = """
    parallel_plan = {"tensor": {"embed": "embedding_rowwise", "head": "rowwise_split_input"}}
"""
TABLE = """\
┌───────────────────────────────────────────────────────────────┐
│                `planned_net:Net` on dp_shard 4                │
├───────────────────────┬─────┬─────────┬─────────┬─────────────┤
│          Unit         │Shape│Placement│  Whole  │Largest shard│
├───────────────────────┼─────┼─────────┼─────────┼─────────────┤
│embed                  │     │         │ 6.45 KiB│   1.68 KiB  │
│  weight               │50×33│ Shard(0)│ 6.45 KiB│   1.68 KiB  │
│blocks.0 … 1 (2 units) │     │         │ 4.38 KiB│   1.2 KiB   │
│  layer.weight (frozen)│33×33│ Shard(0)│ 4.25 KiB│   1.16 KiB  │
│  layer.bias (frozen)  │  33 │ Shard(0)│132 bytes│   36 bytes  │
│norm + head            │     │         │ 6.7 KiB │   1.75 KiB  │
│  norm.weight          │  33 │ Shard(0)│132 bytes│   36 bytes  │
│  norm.bias            │  33 │ Shard(0)│132 bytes│   36 bytes  │
│  head.weight          │50×33│ Shard(0)│ 6.45 KiB│   1.68 KiB  │
└───────────────────────┴─────┴─────────┴─────────┴─────────────┘
Memory of the rank that needs most:
  parameters                5.81 KiB
  gradients                 3.42 KiB
  optimizer states (AdamW)  6.84 KiB
  buffers                   28 bytes
  total                     16.11 KiB
One process has 61.36 KiB of parameters, gradients and optimizer state in total.
"""


@pytest.fixture(autouse=True)
def model_file(tmp_path, monkeypatch):
    (tmp_path / "planned_net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "planned_net.py"
    sys.modules.pop("planned_net", None)


def plan(*words):
    return main(["plan", "planned_net:Net", *words])


def test_the_table_has_each_unit_with_its_parameters_and_the_sums_of_a_rank(capsys):
    assert plan("--num_processes", "4") == 0
    assert capsys.readouterr().out == TABLE


def test_copies_of_the_model_are_a_mesh_of_two_axes(capsys):
    assert plan("--num_processes", "4", "--dp_replicate_size", "2") == 0
    text = capsys.readouterr().out
    assert "`planned_net:Net` on dp_replicate 2 × dp_shard 2" in text
    assert "Replicate, Shard(0)" in text


def test_layers_are_split_by_tp_before_they_are_sharded(model_file, capsys):
    model_file.write_text(MODULE.replace("class Net(nn.Module):", "class Net(nn.Module):" + SHARED))
    assert plan("--num_processes", "4", "--tp_size", "2", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    [embed, *_, head] = [unit["parameters"][-1] for unit in told["units"]]
    assert (embed["placement"], embed["largest_shard_bytes"]) == ("Shard(0), Shard(0)", 13 * 33 * 4)
    assert (head["placement"], head["largest_shard_bytes"]) == ("Shard(0), Shard(1)", 25 * 17 * 4)
    assert told["layout"] == {"dp_shard": 2, "tp": 2}
    assert plan("--num_processes", "4", "--tp_size", "2") == 0
    assert "on dp_shard 2 × tp 2" in capsys.readouterr().out


EXPERTS = """
class Net(nn.Module):
    parallel_plan = {"experts": {"experts": "ep_dispatch_experts"}}

    def __init__(self):
        super().__init__()
        self.experts = nn.Module()
        self.experts.up = nn.Parameter(torch.empty(6, 5, 10))
"""


def test_experts_are_distributed_before_they_are_sharded(model_file, capsys):
    model_file.write_text("import torch\nfrom torch import nn\n" + EXPERTS)
    assert plan("--num_processes", "4", "--ep_size", "2", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    [experts] = told["units"]
    assert experts["modules"] == ["experts"]
    assert experts["parameters"][0]["placement"] == "Shard(0), Shard(0)"
    assert experts["parameters"][0]["largest_shard_bytes"] == 2 * 5 * 10 * 4
    assert told["memory"]["parameters"] == 2 * 5 * 10 * 4
    assert plan("--num_processes", "4", "--ep_size", "2") == 0
    assert "on dp_shard 4, ep 2" in capsys.readouterr().out


def test_json_reports_bytes_of_each_parameter_on_its_own(capsys):
    assert plan("--num_processes", "4", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [unit["modules"] for unit in told["units"]] == [
        ["embed"],
        ["blocks.0"],
        ["blocks.1"],
        ["norm", "head"],
    ]
    assert told["units"][1]["parameters"][0] == {
        "name": "blocks.0.layer.weight",
        "shape": [33, 33],
        "placement": "Shard(0)",
        "is_trainable": False,
        "bytes": 33 * 33 * 4,
        "largest_shard_bytes": 9 * 33 * 4,
    }
    assert told["memory"]["gradients"] == 4 * (13 * 33 + 9 + 9 + 13 * 33)
    assert told["one_process"] == 16 * (50 * 33 + 33 + 33 + 50 * 33) + 4 * 2 * (33 * 33 + 33)
    assert told["memory"]["buffers"] == 28


RUNNING = """
    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))
"""


def test_a_sequence_length_reports_activations(model_file, capsys):
    model_file.write_text(MODULE + RUNNING)
    told = []
    for tokens in ("1024", "2048"):
        assert plan("--json", "--sequence_length", tokens) == 0
        memory = json.loads(capsys.readouterr().out)["memory"]
        told.append(memory["activations"] + memory["temporary"])
    assert told[1] == pytest.approx(2 * told[0], rel=0.05)


def test_each_pipeline_stage_has_a_table(model_file, capsys):
    model_file.write_text(MODULE + RUNNING)
    assert plan("--num_processes", "4", "--pp_size", "2") == 0
    text = capsys.readouterr().out
    assert "`stage 0 of planned_net:Net` on pp 2 × dp_shard 2" in text
    assert plan("--num_processes", "4", "--pp_size", "2", "--json") == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert [unit["modules"] for unit in stages[1]["units"]] == [["blocks.1"], ["norm", "head"]]
    assert stages[1]["memory"]["parameters"] == 4 * (17 * 33 + 17 + 17 + 17 + 25 * 33)
    assert plan("--num_processes", "4", "--pp_size", "2", "--sequence_length", "8") == 1
    assert "A pipeline (`--pp_size`) cannot run a step without values" in capsys.readouterr().err


def test_a_step_reports_what_ranks_send_along_each_axis(model_file, capsys):
    model_file.write_text(MODULE + RUNNING)
    assert plan("--num_processes", "4", "--sequence_length", "8") == 0
    text = capsys.readouterr().out
    assert "1 × reduce-scatter of 6.7 KiB among 4 ranks (dp_shard)" in text
    assert plan("--num_processes", "4", "--sequence_length", "8", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["moved"] == {"dp_shard": told["bytes_sent"]}


def test_plans_of_several_layouts_are_made_one_after_another(model_file, capsys):
    model_file.write_text(MODULE.replace("class Net(nn.Module):", "class Net(nn.Module):" + SHARED) + RUNNING)
    for num_replicas in (1, 2, 1):
        words = ("--dp_replicate_size", str(num_replicas), "--dp_shard_size", "2", "--tp_size", "2")
        assert plan(*words, "--sequence_length", "8", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert ("dp_replicate" in told["moved"]) == (num_replicas > 1)


def test_layouts_that_fail_are_listed_with_the_reason(model_file, capsys):
    model_file.write_text(MODULE + RUNNING)
    assert plan("--fit", "4:1GB", "--batch_size", "4", "--sequence_length", "8") == 0
    printed = capsys.readouterr()
    assert "dp_replicate 2 × dp_shard 2" in printed.out
    assert "Layouts with tp 2 failed. The Net has no plan" in printed.err
    assert re.search("Layouts with pp 2 .*failed. A pipeline", printed.err)


def test_layouts_that_fit_are_proposed_those_that_send_least_first(capsys):
    assert plan("--fit", "4:40kB", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["sent_per_sequence"] for one in found] == sorted(one["sent_per_sequence"] for one in found)
    assert {"dp_shard": 4} in [one["layout"] for one in found if one["fits"]]
    assert plan("--fit", "4:40kB") == 0
    text = capsys.readouterr().out
    assert "dp_shard 4" in text
    assert "dp_replicate 4" not in text
    assert "1 further layouts need more memory by arithmetic alone" in text


def test_where_nothing_fits_the_closest_is_reported(capsys):
    assert plan("--fit", "4:1kB") == 0
    assert "No layout fits" in (text := capsys.readouterr().out)
    assert "Closest comes dp_shard 4, with 16.11 KiB" in text


def test_a_policy_chooses_other_units(capsys):
    assert plan("--json", "--fsdp_auto_wrap_policy", "NO_WRAP") == 0
    assert [unit["modules"] for unit in json.loads(capsys.readouterr().out)["units"]] == [[""]]
    words = ("--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "--fsdp_transformer_layer_cls_to_wrap")
    assert plan("--json", *words, "Block, LayerNorm") == 0
    units = json.loads(capsys.readouterr().out)["units"]
    assert [unit["modules"] for unit in units] == [["embed"], ["blocks.0"], ["blocks.1"], ["norm"], ["head"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--num_processes", "0"), "`--num_processes` must be at least 1, got 0"),
        (("--num_processes", "8", "--dp_replicate_size", "3"), "is for 6 processes, but there are 8"),
        (("--num_processes", "8", "--dp_shard_size", "4"), "the sizes 8, with .*`dp_shard_size=8`"),
        (("--num_processes", "8", "--pp_size", "4"), "`pp_size` 4 needs as many blocks, but the model has 3"),
        (("--num_processes", "4", "--cp_size", "2", "--sp_size", "2"), "two ways to shard a sequence"),
        (
            ("--cp_size", "2", "--num_processes", "2", "--sequence_length", "3"),
            "does not divide the 3 tokens",
        ),
        (("--fit", "64"), "the memory of each, such as `64:80GB`, got `64`"),
        (("--fit", "64:80GB", "--tp_size", "2"), "`--tp_size` has no effect with `--fit`"),
        (("--num_processes", "2", "--tp_size", "2"), "The Net has no plan by which 2 ranks"),
        (("--num_processes", "8", "--ep_size", "3"), "`ep` must divide .*, which is 8, got 3"),
        (("--num_processes", "2", "--ep_size", "2"), "The Net has no plan that names experts"),
        (("--fsdp_auto_wrap_policy", "NOWRAP"), "Unknown auto-wrap policy `NOWRAP`.*Did you mean `NO_WRAP`"),
        (("--fsdp_min_num_params", "3"), "no effect without `--fsdp_auto_wrap_policy`"),
        (("--sequence_length", "4"), "Net cannot run on tokens alone.*NotImplementedError.*Leave out `--seq"),
    ],
)
def test_what_cannot_be_planned_is_one_line(words, message, capsys):
    assert plan(*words) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)


@pytest.mark.skipif(not is_transformers_available(), reason="needs transformers")
def test_a_config_of_transformers_is_planned_without_weights(tmp_path, capsys):
    folder = tmp_path / "tiny"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["plan", str(folder), "--num_processes", "2"]) == 0
    text = capsys.readouterr().out
    assert "model.layers.0 … 1 (2 units)" in text
    assert "model.embed_tokens + model.norm + lm_head" in text


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}
CONFIGS = {
    "llama": {
        **SMALL,
        "architectures": ["LlamaForCausalLM"],
        "intermediate_size": 32,
        "num_key_value_heads": 2,
    },
    "mixtral": {
        **SMALL,
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": 24,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 50,
    },
    "vit": {"architectures": ["ViTForImageClassification"], **SMALL, "intermediate_size": 32},
}


@pytest.fixture
def plan_kind(tmp_path, capsys):
    """Return a function that plans a model of transformers, and returns what is printed, or its errors."""
    pytest.importorskip("transformers", reason="needs transformers")

    def run(kind, *words, status=0):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **CONFIGS[kind]}))
        assert main(["plan", str(tmp_path), *words]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


def activations(text):
    return json.loads(text)["memory"]["activations"]


def test_a_mixture_keeps_twice_as_much_in_fp32_as_in_half_precision(plan_kind):
    words = ("--json", "--sequence_length", "512")
    full, bf16, fp16 = (
        activations(plan_kind("mixtral", *words, "--mixed_precision", precision))
        for precision in ("no", "bf16", "fp16")
    )
    assert bf16 == pytest.approx(fp16, rel=1e-3)
    assert full / bf16 == pytest.approx(2, rel=0.4)  # masks, indices and the loss have one size


def test_an_encoder_and_decoder_are_planned_and_a_model_of_pictures_is_refused_in_one_line(plan_kind):
    assert activations(plan_kind("t5", "--json", "--sequence_length", "64")) > 0
    assert len(json.loads(plan_kind("t5", "--json", "--pp_size", "2"))["stages"]) == 2
    error = plan_kind("vit", "--sequence_length", "64", status=1)
    assert error.count("\n") == 1
    assert "The ViTForImageClassification cannot run on tokens alone" in error


def test_the_sizes_specify_how_many_processes_there_are(plan_kind):
    text = plan_kind("llama", "--dp_shard_size", "4", "--tp_size", "2", "--sequence_length", "8")
    assert "among 4 ranks (dp_shard)" in text
    assert "among 2 ranks (tp)" in text


@pytest.mark.parametrize("axis", ["cp", "sp"])
def test_ranks_that_share_sequences_send_along_their_axis(plan_kind, axis):
    words = ("--sequence_length", "2048", "--json")
    alone = json.loads(plan_kind("llama", *words))
    shared = json.loads(plan_kind("llama", f"--{axis}_size", "2", "--dp_shard_size", "2", *words))
    assert shared["moved"][axis] > 0
    assert shared["memory"]["temporary"] == pytest.approx(alone["memory"]["temporary"] / 2, rel=0.2)


def test_experts_that_are_spread_send_tokens_of_known_number(plan_kind):
    words = ("--dp_shard_size", "4", "--ep_size", "4", "--sequence_length", "64", "--json")
    told = json.loads(plan_kind("mixtral", *words))
    exchanges = [one for one in told["collectives"] if one["kind"] == "all_to_all"]
    assert {tuple(one["axes"]) for one in exchanges} == {("ep",)}
    assert max(one["bytes"] for one in exchanges) == 64 * 2 * 16 * 4  # each token goes to two experts
