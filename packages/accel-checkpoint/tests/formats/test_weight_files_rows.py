from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from accel_checkpoint.formats.weight_files import WeightRows
from accel_state.errors import CheckpointError

FLOATS = {"matrix": torch.randn(7, 3), "scalar": torch.tensor(2.5), "half": torch.randn(5, 2).bfloat16()}


@pytest.fixture
def path(tmp_path):
    save_file(FLOATS, tmp_path / "model.safetensors", metadata={"tied": "matrix", "gone": "nothing"})
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(("first_row", "num_rows"), [(0, 7), (0, 2), (3, 2), (6, 1), (7, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_are_read_and_converted(path, first_row, num_rows, dtype):
    part = torch.empty(num_rows, 3, dtype=dtype)
    WeightRows(path).read_into(part, "matrix", first_row=first_row)
    assert torch.equal(part, FLOATS["matrix"][first_row : first_row + num_rows].to(dtype))


def test_conversion_goes_through_a_small_buffer(path, monkeypatch):
    monkeypatch.setattr("accel_checkpoint.formats.weight_files._BUFFER_BYTES", 6)
    part = torch.empty(4, 2)
    WeightRows(path).read_into(part, "half", first_row=1)
    assert torch.equal(part, FLOATS["half"][1:].float())


def test_rows_are_converted_in_host_memory_whatever_the_default_device_is(path):
    part = torch.empty(7, 3, dtype=torch.float64)
    with torch.device("meta"):
        WeightRows(path).read_into(part, "matrix")
    assert torch.equal(part, FLOATS["matrix"].double())


def test_scalars_and_more_names_are_read(path):
    rows = WeightRows(path.parent)
    scalar, tied = torch.empty((), dtype=torch.float64), torch.empty(7, 3)
    rows.read_into(scalar, "scalar")
    rows.read_into(tied, "tied")
    assert scalar == 2.5
    assert torch.equal(tied, FLOATS["matrix"])
    assert set(rows) == set(FLOATS)
    assert "tied" in rows
    assert "gone" not in rows
    assert rows.shape("tied") == (7, 3)


def test_an_index_gathers_its_files_and_nothing_else(tmp_path):
    save_file({"a": torch.zeros(2), "stale": torch.zeros(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "two.safetensors")
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert set(WeightRows(tmp_path)) == {"a", "b"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"c": "one.safetensors"}))
    with pytest.raises(CheckpointError, match="lacks `c`, which its index lists"):
        WeightRows(tmp_path)


def test_pickles_are_refused(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"bin` is not a safetensors file, and parts of tensors"):
        WeightRows(tmp_path)


def test_a_file_truncated_after_it_was_opened_is_an_error(path):
    rows = WeightRows(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 20)
    with pytest.raises(CheckpointError, match="ends too early"):
        for name in rows:
            rows.read_into(torch.empty(rows.shape(name)), name)
