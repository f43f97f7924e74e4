"""Parts are read from whatever parts were saved, and damage is an error."""

from dataclasses import replace

import pytest
import torch
import torch.distributed.checkpoint as dcp

from accel_checkpoint.formats.distributed import Destination, DistributedState
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.pieces import Piece
from accel_checkpoint.saving.distributed_files import part_of_rank
from accel_checkpoint.saving.pending_files import write_file
from accel_state.errors import CheckpointError

WHOLE = torch.arange(35.0).reshape(7, 5)
CUTS = [(0, 3), (3, 6), (6, 7), (7, 7)]


def save_parts(folder, cuts=CUTS):
    """Save ``WHOLE`` in rows, as four ranks would, and another value on rank 0."""
    paths = {"w": ("model", "w"), "tied": ("model", "tied"), "n": ("model", "n")}
    names = []
    for rank, (begin, end) in enumerate(cuts):
        pieces = [Piece("w", WHOLE[begin:end], (7, 5), (begin, 0), aliases=("tied",))]
        pieces += [Piece("n", {"lr": 0.1}, is_writer=rank == 0)]
        part = part_of_rank("state", pieces, paths, rank=rank)
        write_file(part, folder)
        names.append(part.name)
    write_file(part.table(names), folder)
    return DistributedState(saved_files(folder), "state")


@pytest.mark.parametrize("rows", [(0, 7), (2, 5), (6, 7), (3, 6)])
@pytest.mark.parametrize("columns", [(0, 5), (1, 3)])
def test_any_part_is_read_from_the_parts_that_overlap_it(tmp_path, rows, columns):
    saved = save_parts(tmp_path)
    part = torch.zeros(rows[1] - rows[0], columns[1] - columns[0])
    saved.read([Destination(part, saved.entries["model.tied"], (rows[0], columns[0]))])
    assert torch.equal(part, WHOLE[slice(*rows), slice(*columns)])


def test_values_are_read_to_the_host_whatever_the_default_device_is(tmp_path):
    saved = save_parts(tmp_path)
    with torch.device("meta"):
        assert torch.equal(saved.value(saved.entries["model.w"]), WHOLE)


def test_torch_reads_the_folder(tmp_path):
    save_parts(tmp_path)
    state = {"model": {"w": torch.zeros(7, 5), "tied": torch.zeros(7, 5), "n": None}}
    dcp.load(state, checkpoint_id=tmp_path / "state", no_dist=True)
    assert torch.equal(state["model"]["w"], WHOLE)
    assert torch.equal(state["model"]["tied"], WHOLE)
    assert state["model"]["n"] == {"lr": 0.1}


def test_what_torch_wrote_is_read(tmp_path):
    state = {"w": WHOLE, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 2), "n": 3}
    dcp.save({"model": state}, checkpoint_id=tmp_path / "state", no_dist=True)
    saved = DistributedState(saved_files(tmp_path), "state")
    read = {path[0]: saved.value(entry) for path, entry in saved.below("model")}
    assert read["n"] == 3
    assert all(torch.equal(read[name], state[name]) for name in ("w", "scalar", "empty"))


def test_values_are_converted_to_the_type_of_the_part(tmp_path):
    saved = save_parts(tmp_path)
    part = torch.zeros(4, 5, dtype=torch.float64)
    saved.read([Destination(part, saved.entries["model.w"], (2, 0))])
    assert torch.equal(part.float(), WHOLE[2:6])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (print, "contains more than tensors"),
        ([WHOLE], "does not contain the part"),
        (WHOLE[:2], "does not contain"),
    ],
)
def test_a_part_that_is_not_what_the_table_promises_is_refused(tmp_path, content, reason):
    saved = save_parts(tmp_path)
    (tmp_path / "other").mkdir()
    torch.save(content, tmp_path / "other" / "file")
    part = (tmp_path / "other" / "file").read_bytes()
    entry = saved.entries["model.w"]
    [first, *_] = [chunk for chunk in entry.chunks if chunk.offset == (0, 0)]
    (tmp_path / "state" / first.file).write_bytes(part)
    chunk = replace(first, start=0, num_bytes=len(part))
    with pytest.raises(CheckpointError, match=reason):
        saved.read([Destination(torch.zeros(3, 5), replace(entry, chunks=(chunk,)), (0, 0))])


def test_conjugate_views_are_read(tmp_path):
    conjugate = torch.complex(WHOLE, WHOLE + 1).conj()
    dcp.save({"model": {"w": conjugate}}, checkpoint_id=tmp_path / "state", no_dist=True)
    saved = DistributedState(saved_files(tmp_path), "state")
    assert torch.equal(saved.value(saved.entries["model.w"]), conjugate)


def test_a_part_that_is_missing_or_truncated_is_an_error(tmp_path):
    save_parts(tmp_path / "a", cuts=CUTS[:1])
    saved = DistributedState(saved_files(tmp_path / "a"), "state")
    with pytest.raises(CheckpointError, match=r"`model.w` in .* are incomplete: 15 of 35"):
        saved.value(saved.entries["model.w"])
    part = tmp_path / "a" / "state" / "__0_0.distcp"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="ends before the part of `model.n`"):
        saved.value(saved.entries["model.n"])
    part.unlink()
    with pytest.raises(CheckpointError, match=r"`state/__0_0.distcp` is missing"):
        saved.value(saved.entries["model.n"])
