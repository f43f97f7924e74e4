"""What a DeepSpeed engine was when it was saved it is again, on any number of ranks and in any strategy."""

from __future__ import annotations

import json
from pathlib import Path

import deepspeed_checkpoints
import pytest
import torch
from deepspeed_launch import launch
from safetensors.torch import load_file

pytestmark = pytest.mark.engine("deepspeed")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder in which all phases have saved and loaded."""
    folder = tmp_path_factory.mktemp("saved")
    for phase, num_processes in (("two", 2), ("one", 1), ("back", 2)):
        done = launch(
            deepspeed_checkpoints.__file__,
            folder,
            folder,
            phase,
            num_processes=num_processes,
            ACCELERATE_USE_DEEPSPEED="false",
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def differences(folder: Path, phase: str) -> dict[str, float]:
    ranks = sorted(folder.glob(f"{phase}.?"))
    assert ranks
    return {
        f"{path.name}: {what}": one for path in ranks for what, one in json.loads(path.read_text()).items()
    }


@pytest.mark.parametrize("phase", ["two", "one", "back"])
def test_what_was_saved_is_loaded_bit_for_bit(saved, phase):
    assert {what: one for what, one in differences(saved, phase).items() if one} == {}


@pytest.mark.parametrize("stage", deepspeed_checkpoints.STAGES)
def test_weights_only_are_for_plain_pytorch_and_hold_tied_ones_once(saved, stage):
    weights = load_file(saved / f"weights{stage}" / "model.safetensors")
    wanted = torch.load(saved / f"zero{stage}.pt")["model"]
    assert len(weights) == len(wanted) - 1
    assert all(torch.equal(value, wanted[name]) for name, value in weights.items())


@pytest.mark.parametrize("index", range(3))
def test_only_the_weights_of_several_engines_are_saved(saved, index):
    weights = load_file(saved / f"engine{index}" / "model.safetensors")
    wanted = torch.load(saved / "engines.pt")
    wanted = wanted["teacher"] if index == 2 else wanted[str(index)]["model"]
    assert weights.keys() <= wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in weights.items())


def test_frozen_weights_may_be_left_out(saved):
    content = torch.load(
        saved / "trained" / "pytorch_model" / "zero_pp_rank_0_mp_rank_00_model_states.pt", weights_only=False
    )
    assert content["module"]
    assert not content.get("frozen_param_fragments")
    assert not [name for name in content["module"] if name.startswith("frozen")]


def test_a_checkpoint_has_the_files_of_deepspeed_and_a_digest_of_each(saved):
    manifest = json.loads((saved / "zero3" / "accel_checkpoint.json").read_text())
    assert manifest["model_format"] == "deepspeed"
    writers = {file["name"]: file["rank"] for file in manifest["files"]}
    for rank in range(2):
        for kind in ("model", "optim"):
            assert writers[f"pytorch_model/zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt"] == rank
    assert {"latest", "zero_to_fp32.py", "pytorch_model/optimizer_0.json"} <= writers.keys()
