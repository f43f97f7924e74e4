from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accel_bigmodel import (
    OffloadedWeightsLoader,
    PrefixedDataset,
    extract_submodules_state_dict,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    offload_state_dict,
    offload_weight,
    save_offload_index,
)
from accel_bigmodel.offload.folder import read_offload_index
from accel_bigmodel.offload.weights_map import read_ahead
from accel_checkpoint.formats.safetensor_ranges import read_layout
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
    assert list(weights) == ["disk", "file", "memory"]  # peft looks the first one up in the index
    assert len(weights) == 3
    assert [weights[name].sum().item() for name in weights] == [2, 6, 0]
    assert weights["file"].dtype == torch.float16
    copied = copy.deepcopy(weights)
    for name in weights:
        assert torch.equal(copied[name], weights[name])
        copied[name].add_(1)  # nothing is shared
    assert [weights[name].sum().item() for name in weights] == [2, 6, 0]
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
    assert extract_submodules_state_dict(state, [""]) == state


def test_entries_of_many_submodules_are_found_in_one_pass():
    def num_calls(num_layers):
        state = {f"layers.{number}.weight": number for number in range(num_layers)}
        names = [f"layers.{number}" for number in range(0, num_layers, 2)]
        calls = 0

        def count(_frame, event, _):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            found = extract_submodules_state_dict(state, names)
        finally:
            sys.setprofile(None)
        assert list(found.values()) == list(range(0, num_layers, 2))
        return calls

    assert num_calls(400) < 2.2 * num_calls(200)


def anonymous_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_weights_in_files_of_safetensors_are_not_copied(tmp_path):
    layer_bytes, num_layers = 512 * 512 * 4, 40
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(num_layers)))
    path = tmp_path / "model.safetensors"
    for padding in range(0, 64, 8):  # the length of the header decides where the data begins
        save_file(model.state_dict(), path, metadata={"padding": "x" * padding})
        if all(place.start % 64 for place in read_layout(path).ranges.values()):
            break
    else:
        pytest.fail("safetensors aligns its data to 64 bytes now")
    with init_empty_weights():
        skeleton = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(num_layers)))
    x = torch.randn(1, 512)
    with torch.no_grad():
        wanted = model(x)
        del model
        before = anonymous_bytes()
        load_checkpoint_and_dispatch(skeleton, path, {"": "disk"})
        assert anonymous_bytes() - before < 4 * layer_bytes
        for _ in range(3):
            assert torch.allclose(skeleton(x), wanted, rtol=1e-4, atol=1e-6)  # 512 numbers in another order
    assert anonymous_bytes() - before < 8 * layer_bytes  # of 40


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system offers no advice")
def test_weights_in_files_are_read_ahead_by_their_range(tmp_path, monkeypatch):
    save_file({"w": torch.arange(8.0)}, tmp_path / "m.safetensors")
    place = read_layout(tmp_path / "m.safetensors")["w"]
    offload_state_dict(tmp_path, {"raw": torch.ones(2)})
    index = {**read_offload_index(tmp_path), "w": {"safetensors_file": str(tmp_path / "m.safetensors")}}
    weights = OffloadedWeightsLoader({"memory": torch.zeros(1)}, tmp_path, index)
    advised = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *advice: advised.append(advice))
    for name in ("w", "memory", "missing"):
        read_ahead(PrefixedDataset(weights, name[:1]), name[1:])
    assert advised == [(place.start, 32, os.POSIX_FADV_WILLNEED)]


def test_weights_whose_elements_are_not_aligned_are_read_all_the_same(tmp_path):
    state = {
        "a": torch.ones(3, dtype=torch.uint8),
        "b": torch.arange(4.0),
        "c": torch.arange(5).to(torch.bfloat16),
    }
    header, start = {}, 0
    for name, tensor in state.items():
        code = {torch.uint8: "U8", torch.float32: "F32", torch.bfloat16: "BF16"}[tensor.dtype]
        end = start + tensor.nbytes
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    raw = b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in state.values())
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw)
    index = {name: {"safetensors_file": str(path)} for name in state}
    weights = OffloadedWeightsLoader(index=index)
    assert all(torch.equal(weights[name], tensor) for name, tensor in state.items())


def num_mapped(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{folder}/")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
@pytest.mark.parametrize(("num_weights", "num_values"), [(300, 1), (4_300, 8_192)])
def test_the_mappings_of_a_folder_do_not_grow_with_its_weights(tmp_path, num_weights, num_values):
    values = torch.arange(num_values, dtype=torch.float32)
    index = offload_weight(values, "first", tmp_path, {})
    for number in range(num_weights):
        os.link(tmp_path / "first.dat", tmp_path / f"{number}.dat")
        index[f"{number}"] = index["first"]
    save_offload_index(index, tmp_path)
    weights = OffloadedWeightsLoader(save_folder=tmp_path)
    written = weights["0"].add_(1)
    assert all(torch.equal(weights[f"{number}"], values) for number in range(1, num_weights))
    assert num_mapped(tmp_path) < num_weights
    assert weights["0"] is written
