"""A tensor is a view of the file, as it was saved, and damage or code in the file is an error."""

import io
import os
import pickle
import zipfile

import pytest
import torch

from accel_checkpoint.formats.mapped_tensors import mapped_tensor
from accel_state.errors import CheckpointError

ROWS = torch.arange(12.0).reshape(3, 4)


def saved(content):
    """Return what `torch.save` writes."""
    written = io.BytesIO()
    torch.save(content, written)
    return written.getvalue()


def mapped(folder, part, before=b"x" * 4099):
    """Map a part of a file, after other bytes and before some more."""
    path = folder / "parts"
    path.write_bytes(before + part + b"y" * 77)
    with path.open("rb") as file:
        return mapped_tensor(file, path, start=len(before), num_bytes=len(part))


def rewritten(part, change, compression=zipfile.ZIP_STORED):
    """Return an archive whose members ``change`` has replaced by others: a dict by name."""
    with zipfile.ZipFile(io.BytesIO(part)) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in {**members, **change(members)}.items():
            archive.writestr(f"archive/{name}", content)
    return out.getvalue()


@pytest.mark.parametrize(
    "tensor",
    [
        ROWS,
        ROWS.T,
        ROWS[1:, 1:3],
        torch.tensor(2.5),
        torch.nn.Parameter(ROWS),
        ROWS.to(torch.bfloat16),
        ROWS.to(torch.uint16),
        ROWS.to(torch.float8_e4m3fn),
        ROWS.to(torch.complex64),
        ROWS > 3,
    ],
    ids=str,
)
@pytest.mark.parametrize("before", [0, 1, 4096, 65536])
def test_the_tensor_is_the_one_that_was_saved(tmp_path, tensor, before):
    found = mapped(tmp_path, saved(tensor), b"x" * before)
    assert found is not None
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert found.contiguous().view(-1).view(torch.uint8).equal(tensor.contiguous().view(-1).view(torch.uint8))


def test_what_is_not_accessed_is_not_read(tmp_path):
    """Pages that nobody has looked at show what the file holds then."""
    found = mapped(tmp_path, saved(torch.zeros(2**20, dtype=torch.uint8)))
    with (tmp_path / "parts").open("r+b") as file:
        file.seek(file.seek(0, os.SEEK_END) // 8 * 4)
        file.write(b"\xff")
    assert int((found != 0).sum()) == 1


def test_writes_do_not_reach_the_file(tmp_path):
    part = saved(ROWS.clone())
    found = mapped(tmp_path, part)
    found.fill_(7)
    assert part in (tmp_path / "parts").read_bytes()


@pytest.mark.parametrize(
    "content",
    [{"w": ROWS}, [ROWS, ROWS], 3, torch.eye(3).to_sparse(), torch.ones(2, dtype=torch.complex64).conj()],
    ids=["dict", "list", "number", "sparse", "conjugate"],
)
def test_anything_but_one_ordinary_tensor_is_left_to_torch(tmp_path, content):
    assert mapped(tmp_path, saved(content)) is None


def test_a_sparse_tensor_leaves_nothing_for_the_checks_of_the_next_file(tmp_path):
    assert mapped(tmp_path, saved(torch.eye(4).to_sparse())) is None
    with torch.sparse.check_sparse_tensor_invariants():  # always checked from torch 2.15 on
        assert torch.load(io.BytesIO(saved({"w": ROWS})), weights_only=True)["w"].equal(ROWS)


def test_another_byte_order_is_left_to_torch(tmp_path):
    part = rewritten(saved(ROWS), lambda _: {"byteorder": b"big"})
    assert mapped(tmp_path, part) is None


class _Code:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: {"data.pkl": pickle.dumps(_Code(), protocol=2)}, "holds more than tensors.*posix.system"),
        (lambda _: {"data.pkl": b"\x80\x02garbage"}, "is damaged or holds more"),
        (lambda members: {"data/0": members["data/0"][:-4]}, "`data/0` is too short"),
        (lambda members: {"data.pkl": members["data.pkl"].replace(b"K\x03K\x04", b"K\x09K\x09")}, "damaged"),
    ],
    ids=["code", "garbage", "short storage", "larger than the storage"],
)
def test_code_and_damage_are_errors(tmp_path, change, reason):
    with pytest.raises(CheckpointError, match=rf"`.*parts` is not loaded: .*{reason}|{reason}"):
        mapped(tmp_path, rewritten(saved(ROWS), change))


def test_a_tensor_that_repeats_its_values_beyond_the_size_of_the_file_is_forged(tmp_path):
    part = saved(torch.ones(1).expand(10**6))
    with pytest.raises(CheckpointError, match="forged tensor, larger than the file"):
        mapped(tmp_path, part)


def test_compressed_members_are_an_error(tmp_path):
    part = rewritten(saved(ROWS), lambda _: {}, zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="compressed data, which `torch.save` never writes"):
        mapped(tmp_path, part)


@pytest.mark.parametrize("num_bytes", [0, 10, 500])
def test_a_part_of_another_size_is_an_error(tmp_path, num_bytes):
    path = tmp_path / "parts"
    path.write_bytes(saved(ROWS))
    with path.open("rb") as file, pytest.raises(CheckpointError, match="parts` "):
        mapped_tensor(file, path, start=0, num_bytes=num_bytes)
