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
    disk_offload,
    extract_submodules_state_dict,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_offloaded_weight,
    load_offloaded_weights,
    offload_state_dict,
    offload_weight,
    save_offload_index,
)
from accel_bigmodel.offload.store import StoredWeight, read_offload_index
from accel_checkpoint.formats.weight_files import read_layout
from accel_state.errors import CheckpointError, ConfigError


def test_all_sources_are_one_mapping(tmp_path):
    raw = offload_weight(torch.ones(2), "disk", tmp_path, {})
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
    save_offload_index(raw, tmp_path)
    assert list(OffloadedWeightsLoader(save_folder=tmp_path)) == ["disk"]


def test_a_source_is_required(tmp_path):
    with pytest.raises(ConfigError, match="Pass weights"):
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


def test_submodules_are_matched_by_full_names():
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


class Probe:
    """Reads that return at once, as ``os.preadv`` with ``RWF_NOWAIT``."""

    def __init__(self, *, is_cached: bool) -> None:
        self.is_cached, self.positions = is_cached, []

    def __call__(self, descriptor, buffers, position, flags=0):
        self.positions.append(position)
        if not self.is_cached:
            raise BlockingIOError
        return 1


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system offers no advice")
@pytest.mark.parametrize("is_cached", [False, True])
def test_weights_in_files_are_read_ahead_by_their_range_unless_they_are_in_memory(
    tmp_path, monkeypatch, is_cached
):
    save_file({"w": torch.arange(8.0)}, tmp_path / "m.safetensors")
    place = read_layout(tmp_path / "m.safetensors").ranges["w"]
    offload_state_dict(tmp_path, {"raw": torch.ones(2)})
    index = {**read_offload_index(tmp_path), "w": {"safetensors_file": str(tmp_path / "m.safetensors")}}
    weights = OffloadedWeightsLoader({"memory": torch.zeros(1)}, tmp_path, index)
    advised = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *advice: advised.append(advice))
    monkeypatch.setattr(os, "preadv", probe := Probe(is_cached=is_cached), raising=False)
    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    for name in ("w", "memory", "missing"):
        StoredWeight.of(PrefixedDataset(weights, name[:1]), name[1:], is_owned=True).read_ahead()
    assert advised == ([] if is_cached else [(place.start, 32, os.POSIX_FADV_WILLNEED)])
    assert probe.positions == [place.start + offset for offset in ((0, 16, 31) if is_cached else (0,))]


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


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 4)])
def test_every_dtype_and_shape_comes_back(tmp_path, dtype, shape):
    weight = (torch.rand(shape) * 3).to(dtype)
    index = offload_weight(weight, "a.b", tmp_path, {})
    assert index == {"a.b": {"dtype": str(dtype)[6:], "shape": list(shape)}}
    loaded = load_offloaded_weight(tmp_path / "a.b.dat", index["a.b"])
    assert loaded.dtype == dtype
    assert loaded.shape == weight.shape
    assert torch.equal(loaded.float(), weight.float())


def test_a_model_gets_its_weights_back(tmp_path):
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    offload_state_dict(tmp_path, model.state_dict())
    load_offloaded_weights(other, read_offload_index(tmp_path), tmp_path)
    assert torch.equal(other.weight, model.weight)
    load_offloaded_weights(other, {}, tmp_path / "nowhere")
    raw: dict = {}
    for name, tensor in (("weight", torch.zeros(2, 2)), ("bias", torch.ones(2))):
        offload_weight(tensor, name, tmp_path, raw)
    load_offloaded_weights(other, raw, tmp_path)
    assert (other.weight.sum(), other.bias.sum()) == (0, 2)


def test_indices_grow(tmp_path):
    save_offload_index({}, tmp_path)
    assert not list(tmp_path.iterdir())
    save_offload_index({"a": {}}, tmp_path)
    save_offload_index({"b": {}}, tmp_path)
    assert read_offload_index(tmp_path) == {"a": {}, "b": {}}


def test_damage_is_reported(tmp_path):
    with pytest.raises(CheckpointError, match="no offloaded weights"):
        read_offload_index(tmp_path)
    (tmp_path / "w.dat").write_bytes(b"123")
    with pytest.raises(CheckpointError, match=r"w\.dat` is missing or truncated"):
        load_offloaded_weight(tmp_path / "w.dat", {"dtype": "float32", "shape": [2]})
    with pytest.raises(CheckpointError, match="no values"):
        offload_weight(torch.empty(1, device="meta"), "w", tmp_path)
    with pytest.raises(CheckpointError, match="cannot be the name of a file inside"):
        offload_weight(torch.ones(1), "../w", tmp_path)


def test_a_state_dict_is_a_raw_file_per_tensor_whatever_the_folder_held_before(tmp_path):
    state = {
        "a.w": torch.ones(2),
        "v": torch.zeros(0, 3, dtype=torch.int8),
        "t": torch.arange(6.0).reshape(2, 3).T,
    }
    offload_state_dict(tmp_path, {"v": torch.ones(1)})
    offload_state_dict(tmp_path, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.w.dat", "index.json", "t.dat", "v.dat"]
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    weights = OffloadedWeightsLoader(save_folder=moved)
    assert all(torch.equal(weights[name], value) for name, value in state.items())
    with pytest.raises(CheckpointError, match="cannot be the name of a file inside"):
        offload_state_dict(tmp_path, {"../w": torch.ones(2)})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_a_model_of_more_weights_than_a_process_has_mappings_is_one_mapping(tmp_path):
    values = torch.arange(5_000)
    offload_state_dict(tmp_path, {f"{number}": values[number : number + 1] for number in range(5_000)})
    weights = OffloadedWeightsLoader(save_folder=tmp_path)
    assert sum(weights.values()) == values.sum()
    assert num_mapped(tmp_path) <= 2


def test_folders_of_raw_files_serve_a_model(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3))
    index: dict = {}
    for name, tensor in model.state_dict().items():
        offload_weight(tensor, name, tmp_path, index)
    save_offload_index(index, tmp_path)
    with init_empty_weights():
        skeleton = nn.Sequential(nn.Linear(3, 3))
    x = torch.ones(1, 3)
    with torch.no_grad():
        assert torch.equal(disk_offload(skeleton, tmp_path, "cpu")(x), model(x))


def test_a_raw_file_is_read_into_memory_whatever_the_default_device_is(tmp_path):
    index = offload_weight(torch.arange(3.0), "w", tmp_path, {})
    with torch.device("meta"):
        offload_weight(torch.empty(0, device="cpu"), "empty", tmp_path, {})
        found = load_offloaded_weight(tmp_path / "w.dat", index["w"])
    assert torch.equal(found, torch.arange(3.0))
