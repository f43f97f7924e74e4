"""Weights that are away, and ties between those that are and those that are not."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

from accel_bigmodel import (
    align_module_device,
    cpu_offload,
    disk_offload,
    dispatch_model,
    get_state_dict_offloaded_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    offload_state_dict,
    save_model,
)
from accel_bigmodel.offload.store import offloaded_weights
from accel_ops.named_tensors import named_tensors

TOKENS = torch.tensor([[1, 2, 3]])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(7, 5)
        self.mix = nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens)))


def kept_in_memory(folder):
    return cpu_offload(Tied(), "cpu")


def kept_on_disk(folder):
    return disk_offload(Tied(), folder / "offload", "cpu")


def dispatched(*disk, from_checkpoint):
    def make(folder):
        places = {name: "disk" if name in disk else "cpu" for name in ("embed", "mix", "head")}
        if not from_checkpoint:
            return dispatch_model(Tied(), places, offload_dir=folder / "offload")
        save_model(Tied(), folder / "checkpoint")
        with init_empty_weights():
            model = Tied()
        return load_checkpoint_and_dispatch(
            model, folder / "checkpoint", device_map=places, offload_folder=folder / "offload"
        )

    return make


WAYS = {
    "memory": kept_in_memory,
    "disk": kept_on_disk,
    "both names on disk": dispatched("embed", "head", from_checkpoint=False),
    "the second on disk": dispatched("head", from_checkpoint=False),
    "the first on disk": dispatched("embed", from_checkpoint=False),
    "both in the checkpoint": dispatched("embed", "head", "mix", from_checkpoint=True),
    "the second in the checkpoint": dispatched("head", "mix", from_checkpoint=True),
    "the first in the checkpoint": dispatched("embed", "mix", from_checkpoint=True),
}


@pytest.mark.filterwarnings("ignore:Tied parameters are on different devices")
@pytest.mark.parametrize("way", WAYS)
def test_tied_weights_that_are_away_stay_tied_for_the_process_that_saves_them(tmp_path, way):
    model = WAYS[way](tmp_path)
    with torch.no_grad():
        assert torch.equal(model(TOKENS), Tied()(TOKENS))
    for state in (model.state_dict(), get_state_dict_offloaded_model(model)):
        assert state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()
    (path,) = save_model(model, tmp_path / "saved")
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == ["embed.weight", "mix.bias", "mix.weight"]
        assert file.metadata() == {"format": "pt", "head.weight": "embed.weight"}
    fresh = Tied()
    nn.init.zeros_(fresh.embed.weight)
    load_model(fresh, path, strict=True)
    assert torch.equal(fresh(TOKENS), Tied()(TOKENS))


@pytest.mark.parametrize("make", [kept_on_disk, dispatched("embed", "head", "mix", from_checkpoint=False)])
def test_tied_weights_take_their_place_on_disk_once(tmp_path, make):
    make(tmp_path)
    (path,) = (tmp_path / "offload").glob("*.safetensors")
    assert sorted(load_file(path)) == ["embed.weight", "mix.bias", "mix.weight"]
    assert sorted(json.loads((tmp_path / "offload/index.json").read_text())) == [
        "embed.weight",
        "mix.bias",
        "mix.weight",
    ]


def test_a_folder_that_had_weights_of_an_earlier_model_does_not_give_them_to_a_tied_one(tmp_path):
    offload_state_dict(tmp_path, {"head.weight": torch.zeros(7, 5)})
    model = disk_offload(Tied(), tmp_path, "cpu")
    assert "head.weight" in json.loads((tmp_path / "index.json").read_text())
    with torch.no_grad():
        assert torch.equal(model(TOKENS), Tied()(TOKENS))
    assert torch.equal(model.state_dict()["head.weight"], Tied().head.weight)


@pytest.mark.filterwarnings("ignore:Tied parameters are on different devices")
def test_copies_of_a_tied_weight_are_one_in_the_state_dict_until_one_is_changed():
    resident = Tied()
    stored = {name: tensor.clone() for name, tensor in resident.state_dict().items()}
    places = {"embed": "cpu", "mix": "cpu", "head": "disk"}
    model = dispatch_model(resident, places, state_dict={"head.weight": stored["head.weight"]})
    state = model.state_dict()
    assert state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()
    with torch.no_grad():
        model.embed.weight.zero_()
    state = model.state_dict()
    assert torch.equal(state["head.weight"], stored["head.weight"])
    assert not state["embed.weight"].any()


def test_what_is_written_to_an_offloaded_weight_is_in_the_next_state_dict(tmp_path):
    model = kept_on_disk(tmp_path)
    before = model.state_dict()
    with align_module_device(model.embed), torch.no_grad():
        model.embed.weight.fill_(3)
    assert (model.state_dict()["head.weight"] == 3).all()
    assert (
        before["head.weight"] == 3
    ).all()  # as in a resident model, a state dict shares the memory of the weights


def test_weights_that_go_to_a_device_are_not_kept_in_memory_too():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    kept = offloaded_weights(named_tensors(model), {"0": "meta", "1": "cpu"})
    assert sorted(kept) == ["1.bias", "1.weight"]
