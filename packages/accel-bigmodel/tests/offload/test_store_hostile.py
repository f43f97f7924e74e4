"""Offload folders that others can write to: links are not followed, and a malformed index is an error."""

import json
import os

import pytest
import torch

from accel_bigmodel import (
    OffloadedWeightsLoader,
    load_offloaded_weight,
    offload_state_dict,
    offload_weight,
    save_offload_index,
)
from accel_state.errors import CheckpointError

PLANTS = {
    "a link": lambda path, victim: path.symlink_to(victim),
    "a hard link": lambda path, victim: path.hardlink_to(victim),
    "a link to nothing": lambda path, victim: path.symlink_to(victim.with_name("made")),
    "a link to a folder": lambda path, victim: path.symlink_to(victim.parent),
    "a pipe": lambda path, victim: os.mkfifo(path),
}


@pytest.mark.skipif(os.name != "posix", reason="needs links and pipes")
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", ["w.dat.part", "index.json.part", "w.dat"])
def test_a_planted_link_is_replaced_and_not_written_through(tmp_path, name, plant):
    victims, folder = tmp_path / "victims", tmp_path / "offload"
    victims.mkdir()
    folder.mkdir()
    (victims / "precious").write_text("precious")
    PLANTS[plant](folder / name, victims / "precious")
    index = offload_weight(torch.ones(2), "w", folder, {})
    save_offload_index(index, folder)
    assert (victims / "precious").read_text() == "precious"
    assert os.listdir(victims) == ["precious"]
    assert sorted(os.listdir(folder)) == ["index.json", "w.dat"]
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert OffloadedWeightsLoader(save_folder=folder)["w"].tolist() == [1, 1]


ENTRIES = [
    None, [], "w", 1,
    {}, {"shape": [2]}, {"dtype": "float32"},
    {"dtype": "float32", "shape": [-2]}, {"dtype": "float32", "shape": [2.0]},
    {"dtype": "float32", "shape": ["2"]}, {"dtype": "float32", "shape": [0, 2**63]},
    {"dtype": "int4", "shape": [2]}, {"dtype": "nothing", "shape": [2]}, {"dtype": None, "shape": [2]},
    {"safetensors_file": 3}, {"safetensors_file": "\0"},
]  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_a_malformed_entry_is_named(tmp_path, entry):
    offload_state_dict(tmp_path, {"w": torch.ones(2)})
    (tmp_path / "index.json").write_text(json.dumps({"w": entry}))
    with pytest.raises(CheckpointError, match="invalid entry for `.*`: .*Offload the model again"):
        OffloadedWeightsLoader(save_folder=tmp_path)["w"]


def test_a_file_that_is_missing_is_named(tmp_path):
    weights = OffloadedWeightsLoader(index={"w": {"safetensors_file": str(tmp_path / "gone")}})
    with pytest.raises(CheckpointError, match=r"gone` with `w` is missing: .*offload this one again"):
        weights["w"]


def test_an_entry_without_a_shape_is_refused_for_a_single_file(tmp_path):
    offload_weight(torch.ones(2), "w", tmp_path)
    with pytest.raises(CheckpointError, match="invalid entry for `w`"):
        load_offloaded_weight(tmp_path / "w.dat", {"dtype": "float32"})


@pytest.mark.parametrize("content", ["[" * 100000, "[]", "{", '{"a": ', "\0"])
def test_an_index_that_is_no_table_is_an_error(tmp_path, content):
    offload_state_dict(tmp_path, {"w": torch.ones(2)})
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"index\.json` "):
        OffloadedWeightsLoader(save_folder=tmp_path)


def test_a_weight_that_its_safetensors_file_lacks_is_named(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "file.safetensors")
    index = {name: {"safetensors_file": str(tmp_path / "file.safetensors"), "dtype": "no"} for name in "ab"}
    weights = OffloadedWeightsLoader(index=index)
    with pytest.raises(CheckpointError, match="invalid entry for `b`"):
        weights["b"]
    with pytest.raises(CheckpointError, match="invalid entry for `a`"):
        weights["a"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe` is not a regular file"):
        OffloadedWeightsLoader(index={"w": {"safetensors_file": str(tmp_path / "pipe")}})["w"]
