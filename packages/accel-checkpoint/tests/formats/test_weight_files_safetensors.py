from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from accel_checkpoint.formats.weight_files import MappedFile, read_layout
from accel_state.errors import CheckpointError

TENSORS = {
    "a": torch.arange(7, dtype=torch.uint8),
    "b": torch.rand(3, 5),
    "c": torch.rand(()),
    "d": torch.rand(2, 0),
    "e": torch.rand(9).bfloat16(),
    "f": torch.randint(-9, 9, (4, 2)),
}


def test_every_tensor_is_found_and_mapped(tmp_path):
    save_file(TENSORS, tmp_path / "m.safetensors")
    layout, mapped = read_layout(tmp_path / "m.safetensors"), MappedFile(tmp_path / "m.safetensors")
    assert set(layout.ranges) == set(TENSORS)
    for name, place in layout.ranges.items():
        assert torch.equal(mapped.tensor(place), TENSORS[name])


def test_the_format_in_the_metadata_is_no_second_name_of_a_tensor_called_pt(tmp_path):
    save_file({"pt": torch.rand(2)}, tmp_path / "m.safetensors", metadata={"format": "pt", "tied": "pt"})
    assert read_layout(tmp_path / "m.safetensors").second_names == {"tied": "pt"}


def test_tensors_at_odd_places_are_copied(tmp_path):
    data = torch.rand(4)
    header = {
        "x": {"dtype": "F32", "shape": [4], "data_offsets": [1, 17]},
        "y": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "m").write_bytes(len(text).to_bytes(8, "little") + text + b"\x01" + data.numpy().tobytes())
    layout = read_layout(tmp_path / "m")
    assert torch.equal(MappedFile(tmp_path / "m").tensor(layout.ranges["x"]), data)
    with torch.device("meta"):
        assert torch.equal(MappedFile(tmp_path / "m").tensor(layout.ranges["x"]), data)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"{x", "not valid JSON"),
        (b'["a"]', "not a table"),
        (b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}', "the entry of `a` is invalid"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "`a` is outside of it"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', "`a` is outside of it"),
        (
            b'{"a": {"dtype": "F32", "shape": [0, 9223372036854775808], "data_offsets": [0, 0]}}',
            "is outside",
        ),
        (
            (
                b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "b": {"dtype": "U8", "shape": [3], '
                b'"data_offsets": [1, 4]}}'
            ),
            "its tensors overlap",
        ),
        (
            (
                b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "a": {"dtype": "U8", "shape": [2], '
                b'"data_offsets": [2, 4]}}'
            ),
            "a key occurs twice",
        ),
        (b"[" * 100000, "not valid JSON"),
    ],
)
def test_invalid_headers_are_rejected(tmp_path, header, why):
    (tmp_path / "m").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(CheckpointError, match=why):
        read_layout(tmp_path / "m")


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2"])
def test_dtypes_that_are_not_supported_are_named(tmp_path, dtype):
    header = json.dumps({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "m").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(
        CheckpointError, match=rf"`a` in .* has the dtype `{dtype}`.*Convert the file to another dtype"
    ):
        read_layout(tmp_path / "m")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_8_bit_floats_without_a_negative_zero_are_read(tmp_path, dtype):
    wanted = torch.tensor([0.5, -2.0, 3.0]).to(dtype)
    code = "F8_" + str(dtype).rpartition("_")[2].upper()
    header = json.dumps({"a": {"dtype": code, "shape": [3], "data_offsets": [0, 3]}}).encode()
    raw = bytes(wanted.view(torch.uint8).tolist())
    (tmp_path / "m").write_bytes(len(header).to_bytes(8, "little") + header + raw)
    read = MappedFile(tmp_path / "m").tensor(read_layout(tmp_path / "m").ranges["a"])
    assert read.dtype == dtype
    assert torch.equal(read.float(), wanted.float())


@pytest.mark.parametrize(
    "header",
    [
        '{"a": {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]}}',
        '{"a": {"dtype": "F32", "shape": [2.0, 2], "data_offsets": [0, 16]}}',
        '{"a": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}}',
        '{"a": {"dtype": "F32", "shape": [4], "data_offsets": ["0", 16]}}',
        '{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0]}}',
        '{"a": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}}',
        '{"a": []}',
        '{"__metadata__": [1]}',
        '{"__metadata__": {"a": ["b"]}}',
        "[" * 20_000 + "]" * 20_000,
        "[]",
        '"a"',
    ],
    ids=range(12),
)
def test_malformed_headers_are_named_as_such(tmp_path, header):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(16))
    with pytest.raises(CheckpointError, match="is not a readable safetensors file"):
        read_layout(path)
