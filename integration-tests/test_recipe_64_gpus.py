"""docs/scale/recipe_64_gpus.md: its script runs, its launch starts 64 ranks, and its numbers are those of the plan."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys

import numpy as np
import preloaded
import pytest
import recipe_64_gpus
import transformers
from documented import DOCS, fences

from accel_launch.cli import main
from accel_launch.config.templates import read_template
from tools.harness.scripts import run_script

pytestmark = pytest.mark.engine("long")

PAGE = DOCS / "scale" / "recipe_64_gpus.md"
SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
FOR_RANKS = re.compile("ACCELERATE_|FSDP_|PARALLELISM_|(LOCAL_)?(RANK|WORLD_SIZE)$")
PRELOADED = (*preloaded.ACCEL, "transformers.models.llama")
ON_CPU = {"ACCELERATE_USE_CPU": "true"}
ARGUMENTS = ["--model=llama", "--tokens=tokens.bin", "--length=16", "--save_every=2", "--steps=2"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the script of the page, a small Llama, tokens and the config file."""
    (script,) = (block.text for block in fences(PAGE) if block.language == "python")
    (tmp_path / "train_llama.py").write_text(script, encoding="utf-8")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).save_pretrained(tmp_path / "llama")
    tokens = np.random.default_rng(0).integers(0, 128, 16 * 1024, dtype=np.uint32)
    tokens.tofile(tmp_path / "tokens.bin")
    (tmp_path / "hsdp_tp.yaml").write_text(read_template("hsdp_tp"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_script_runs_on_a_rank_of_64(folder, capsys):
    launch = ["launch", "--config_file=hsdp_tp.yaml", "--dry-run", "--json", "train_llama.py"]
    assert main(launch) == 0
    rank = json.loads(capsys.readouterr().out)["processes"][0]
    done = run_script(
        recipe_64_gpus.__file__,
        "train_llama.py",
        *ARGUMENTS,
        env={**{name: text for name, text in rank["environ"].items() if FOR_RANKS.match(name)}, **ON_CPU},
        cwd=folder,
        preload=PRELOADED,
    )
    assert done.returncode == 0, done.stderr
    assert "mesh {'dp_replicate': 2, 'dp_shard': 8, 'tp': 4}" in done.stdout
    assert "weight (64, 64) (2, 64)" in done.stdout  # rows over 8 × 4 ranks


def test_the_script_trains_and_resumes_on_two_tp_ranks(folder):
    sizes = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "PARALLELISM_CONFIG_TP_SIZE": "2"}
    for steps in (2, 4):
        done = run_script(
            "train_llama.py",
            *ARGUMENTS,
            f"--steps={steps}",
            num_processes=2,
            env=sizes,
            cwd=folder,
            preload=PRELOADED,
        )
        assert done.returncode == 0, done.stderr
    saved = folder / "runs" / "llama" / "checkpoints"
    # The second run did two steps.
    assert sorted(path.name for path in saved.iterdir()) == [
        "checkpoint_0",
        "checkpoint_1",
    ]
    assert (folder / "runs" / "llama" / "weights" / "model.safetensors").is_file()


def test_the_batch_script_is_that_of_the_dry_run(folder, capsys):
    (command,) = (block.text for block in fences(PAGE) if "--slurm " in block.text)
    (shown,) = (block.text for block in fences(PAGE) if "#SBATCH" in block.text)
    assert main(shlex.split(command.replace("\\\n", ""))[1:]) == 0
    printed = capsys.readouterr().out
    printed = printed[printed.index("#!") :].replace(str(folder), "/data")
    assert (
        printed.replace(sys.executable, "/opt/venv/bin/python").replace(" -B ", " ").strip() == shown.strip()
    )


def test_the_layouts_are_those_of_the_plan(folder, capsys):
    page = PAGE.read_text(encoding="utf-8")
    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder / "llama-3-8b")
    (command,) = re.findall(r"^accel plan (.*)$", page, re.MULTILINE)
    assert main(["plan", *command.split(), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    sizes = [int(size) for size in re.findall(r"--(?:dp_replicate|tp)_size (\d+)", command)]
    assert 64 % math.prod(sizes) == 0
    assert f"| {plan['memory']['total'] / 2**30:.1f} GiB |" in page
