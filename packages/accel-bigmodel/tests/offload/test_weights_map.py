from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import save_file

from accel_bigmodel import (
    OffloadedWeightsLoader,
    PrefixedDataset,
    extract_submodules_state_dict,
    offload_state_dict,
)
from accel_state.errors import CheckpointError, ConfigError


def test_all_sources_are_one_mapping(tmp_path):
    offload_state_dict(tmp_path, {"disk": torch.ones(2)})
    save_file({"stored": torch.full((3,), 2.0)}, tmp_path / "m.safetensors")
    index = {
        "disk": {"dtype": "float32", "shape": [2]},
        "file": {
            "safetensors_file": str(tmp_path / "m.safetensors"),
            "weight_name": "stored",
            "dtype": "float16",
        },
    }
    weights = OffloadedWeightsLoader({"memory": torch.zeros(1)}, tmp_path, index)
    assert list(weights) == ["memory", "disk", "file"]
    assert len(weights) == 3
    assert [weights[name].sum().item() for name in weights] == [0, 2, 6]
    assert weights["file"].dtype == torch.float16
    copied = copy.deepcopy(weights)
    for name in weights:
        assert torch.equal(copied[name], weights[name])
        copied[name].add_(1)  # nothing is shared
    assert [weights[name].sum().item() for name in weights] == [0, 2, 6]
    assert list(OffloadedWeightsLoader(save_folder=tmp_path)) == ["disk"]


def test_a_source_is_required(tmp_path):
    with pytest.raises(ConfigError, match="Give weights"):
        OffloadedWeightsLoader()
    with pytest.raises(CheckpointError, match="no `save_folder`"):
        OffloadedWeightsLoader(index={"a": {"dtype": "float32", "shape": []}})["a"]


def test_prefixes_are_left_out_by_the_caller():
    part = PrefixedDataset({"a.x": 1, "a.y": 2, "b": 3}, "a.")
    assert part["x"] == 1
    assert "y" in part
    assert "b" not in part
    assert list(part) == ["a.x", "a.y"]
    assert len(part) == 2


def test_submodules_are_told_by_whole_names():
    state = {"a.x": 1, "ab.x": 2, "b": 3}
    assert extract_submodules_state_dict(state, ["a", "b"]) == {"a.x": 1, "b": 3}
