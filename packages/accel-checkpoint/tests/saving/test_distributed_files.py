import json
import sys
import zipfile

import pytest
import torch

from accel_checkpoint.formats.distributed import Entry, read_metadata
from accel_checkpoint.pieces import Piece
from accel_checkpoint.saving.distributed_files import part_of_rank
from accel_checkpoint.saving.pending_files import write_file
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_state.errors import CheckpointError


def test_a_rank_writes_its_own_parts_and_notes_where_they_lie(tmp_path):
    pieces = [
        Piece("copy", torch.ones(2), (2,), (0,), is_writer=False),
        Piece("part", torch.ones(1, 2), (3, 2), (2, 0)),
        Piece("nothing", torch.ones(0, 2), (3, 2), (3, 0)),
        Piece("empty", torch.ones(0, 2), (0, 2), (0, 0)),
    ]
    file = part_of_rank("s", pieces, {piece.name: ("m", piece.name) for piece in pieces}, rank=3)
    assert file.name == "s/__3_0.distcp"
    write_file(file, tmp_path)
    part, empty = json.loads((tmp_path / f"{file.name}.note").read_text())
    assert (part["paths"], part["part"], part["dtype"]) == (
        [["m", "part"]],
        [[3, 2], [2, 0], [1, 2]],
        "float32",
    )
    assert empty["paths"] == [["m", "empty"]]
    assert sum(part["place"]) == empty["place"][0]


def test_torch_computes_no_second_checksum_and_its_setting_is_left_as_it_was(tmp_path):
    file = part_of_rank("s", [Piece("w", torch.ones(2), (2,), (0,))], {"w": ("w",)}, rank=0)
    for name, is_set in (("with", True), ("without", False)):
        (tmp_path / name).mkdir()
        torch.serialization.set_crc32_options(is_set)
        try:
            write_file(file, tmp_path / name)
            assert torch.serialization.get_crc32_options() == is_set
        finally:
            torch.serialization.set_crc32_options(True)
    with zipfile.ZipFile(tmp_path / "with" / file.name) as archive:
        assert {member.CRC for member in archive.infolist()} == {0}
    assert torch.load(tmp_path / "with" / file.name).tolist() == [1, 1]


def test_a_snapshot_keeps_the_values_of_its_time(tmp_path):
    local = torch.ones(2)
    file = part_of_rank("s", [Piece("w", local, (2,), (0,))], {"w": ("w",)}, rank=0).snapshot(HostBuffers())
    local.zero_()
    assert file.pieces[0].local.tolist() == [1, 1]


def test_a_value_that_could_run_code_is_refused():
    with pytest.raises(CheckpointError, match="s/__0_0.distcp.*`w` is a `builtins.function`|`w` is a"):
        part_of_rank("s", [Piece("w", lambda: None)], {"w": ("w",)}, rank=0)


def test_a_table_makes_each_entry_once_however_many_ranks_have_a_part(tmp_path):
    num_ranks, num_made = 50, 0
    names = ["other/__0_0.distcp"]
    for rank in range(num_ranks):
        pieces = [
            Piece("w", torch.full((1, 2), rank, dtype=torch.int16), (num_ranks, 2), (rank, 0)),
            Piece("number", rank),
        ]
        file = part_of_rank("s", pieces, {"w": ("m", "w"), "number": ("m", 0)}, rank=rank)
        write_file(file, tmp_path)
        names.append(file.name)

    def count(frame, event, _):
        nonlocal num_made
        num_made += event == "call" and frame.f_code is Entry.__init__.__code__

    sys.setprofile(count)
    try:
        write_file(file.table(names), tmp_path)
    finally:
        sys.setprofile(None)
    assert num_made == 2
    entries = read_metadata(tmp_path / "s" / ".metadata")
    assert not list(tmp_path.glob("s/*.note"))
    assert (entries["m.w"].dtype, entries["m.w"].shape) == (torch.int16, (num_ranks, 2))
    assert {(chunk.file, chunk.offset) for chunk in entries["m.w"].chunks} == {
        (f"__{rank}_0.distcp", (rank, 0)) for rank in range(num_ranks)
    }
    assert [chunk.file for chunk in entries["m.0"].chunks] == [max(names).removeprefix("s/")]
