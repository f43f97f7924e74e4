from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    load_offloaded_weight,
    load_offloaded_weights,
    offload_state_dict,
    offload_weight,
    save_offload_index,
)
from accel_bigmodel.offload.folder import read_offload_index
from accel_state.errors import CheckpointError

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


def test_indices_grow(tmp_path):
    save_offload_index({}, tmp_path)
    assert not list(tmp_path.iterdir())
    save_offload_index({"a": {}}, tmp_path)
    save_offload_index({"b": {}}, tmp_path)
    assert read_offload_index(tmp_path) == {"a": {}, "b": {}}


def test_damage_is_told(tmp_path):
    with pytest.raises(CheckpointError, match="no offloaded weights"):
        read_offload_index(tmp_path)
    (tmp_path / "w.dat").write_bytes(b"123")
    with pytest.raises(CheckpointError, match=r"w\.dat` is missing or truncated"):
        load_offloaded_weight(tmp_path / "w.dat", {"dtype": "float32", "shape": [2]})
    with pytest.raises(CheckpointError, match="no values"):
        offload_weight(torch.empty(1, device="meta"), "w", tmp_path)
    with pytest.raises(CheckpointError, match="cannot be the name of a file inside"):
        offload_weight(torch.ones(1), "../w", tmp_path)
