"""Files of `torch.save` that strangers wrote: plain values come back as they were, all else is refused."""

import os
import struct
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

from accel_checkpoint.formats.torch_files import read_torch_file
from accel_state.errors import CheckpointError

PLAIN = {
    "bytes": [b"", b"a", b"a", b"latin1", b"x" * 300, "a"],
    "bytearrays": [bytearray(), bytearray(b"a"), bytearray(b"x" * 300)],
    "sets": [set(), {1}, {"a", b"a"}],
    "counts": Counter("aab"),
    "ordered": OrderedDict(a=1, b=OrderedDict()),
    "sizes": [torch.Size(()), torch.Size((3,)), torch.Size((2**40, 1, 70000, 300))],
    "numbers": [2**70, -1, 1.5, 1j, True, None],
    "arrays": [np.float32(2), np.bool_(True), np.arange(3, dtype=">i2"), np.ones((2, 0), "c8"), np.longdouble(3)],
    "memo": [(number, str(number)) for number in range(300)],
}  # fmt: skip


def written(path, content, **options):
    torch.save(content, path, **options)
    return path


def archived(path, pickled, *records):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in (("data.pkl", b"\x80\x02" + pickled + b"."), ("byteorder", b"little"), *records):
            file.writestr(f"archive/{name}", content)
        file.writestr("archive/version", b"3\n")
    return path


def test_plain_values_come_back_as_they_were(tmp_path):
    read = read_torch_file(written(tmp_path / "file", PLAIN))
    for array, saved in zip(read.pop("arrays"), PLAIN["arrays"], strict=True):
        assert array.dtype == saved.dtype.newbyteorder("=")  # NumPy swaps bytes to the order of the machine
        assert (array.shape, array.tolist()) == (saved.shape, saved.tolist())
    assert read == {name: value for name, value in PLAIN.items() if name != "arrays"}
    assert [type(value) for value in read.values()] == [
        type(value) for name, value in PLAIN.items() if name != "arrays"
    ]


def test_a_file_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = written(tmp_path / "file", {"a": torch.arange(3)})
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_torch_file(path)["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_bsc])
def test_sparse_tensors_come_back_as_they_were(tmp_path, layout):
    dense = torch.eye(4, dtype=torch.float64)[:, :2]
    options = {"blocksize": (2, 2)} if layout == torch.sparse_bsc else {}
    sparse = dense.to_sparse(layout=layout, **options)
    read = read_torch_file(written(tmp_path / "file", [sparse]))[0]
    assert read.layout == layout
    assert torch.equal(read.to_dense(), dense)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_indices_beyond_a_sparse_tensor_are_refused(tmp_path, layout):
    size = (1, 10**12) if layout == torch.sparse_csr else (10**12, 1)
    index = torch.tensor([10**12 - 1])
    if layout == torch.sparse_coo:
        sparse = torch.sparse_coo_tensor(torch.stack([index, index * 0]), torch.ones(1), size)
    else:
        sparse = torch.sparse_compressed_tensor(
            torch.tensor([0, 1]), index, torch.ones(1), size, layout=layout
        )
    path = written(tmp_path / "file", sparse)
    # The shape as the pickle has it, made as small as one index.
    content = path.read_bytes()
    large, small = (b"\x8a\x06" + struct.pack("<q", size)[:6] for size in (10**12, 2))
    assert content.count(large) == 1
    path.write_bytes(content.replace(large, small))
    with pytest.raises(CheckpointError, match=f"`{path}` is not loaded: .*(index|indices|invariant)"):
        read_torch_file(path)


BYTEARRAY, ENCODE = b"cbuiltins\nbytearray\n", b"c_codecs\nencode\n"
TEXT, LATIN1 = b"X\x01\x00\x00\x00a", b"X\x06\x00\x00\x00latin1"
LARGE = b"J\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    "pickled",
    [
        BYTEARRAY + LARGE + b"\x85R",
        b"(" + BYTEARRAY + b"q\x01" + LARGE + b"\x85Rt",
        b"(" + BYTEARRAY + b"q\x01)Rh\x01" + LARGE + b"\x85Rt",
        b"c__builtin__\nbytearray\n" + LARGE + b"\x85R",
        ENCODE * 2 + TEXT + LATIN1 + b"\x86RX\x03\x00\x00\x00hex\x86R",
        b"(" + TEXT + b"q\x01" + ENCODE + b"h\x01X\x03\x00\x00\x00hex\x86Rt",
        b"(]q\x01(K\x01K\x02ecbuiltins\nset\nh\x01\x85Rt",
        b"(}q\x01cUserDict\nCounter\nh\x01\x85Rt",
    ],
)
def test_a_call_that_could_take_more_memory_than_the_file_is_refused(tmp_path, pickled):
    with pytest.raises(CheckpointError, match="calls something whose argument is not written out"):
        read_torch_file(archived(tmp_path / "file", pickled))


@pytest.mark.parametrize(
    ("pickled", "reason"),
    [
        (b"Nr\xff\xff\xff\x7f", "its memo has the index 2147483647"),
        (b"X\xff\xff\xff\x7fa", "it is truncated"),
        (b"cbuiltins", "it is truncated"),
        (b"ios\nsystem\n", "its opcode b'i' is not one of plain data"),
    ],
)
def test_what_no_pickle_of_plain_data_has_is_refused(tmp_path, pickled, reason):
    with pytest.raises(CheckpointError, match=reason):
        read_torch_file(archived(tmp_path / "file", pickled))


STATE = b"(K\3X\1\0\0\0<NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\0tb"


def pickled_dtype(code, state=STATE):
    return b"cnumpy\ndtype\nX" + struct.pack("<I", len(code)) + code + b"\x89\x88\x87R" + state


@pytest.mark.parametrize("code", [b"V2147483640", b"S9", b"O", b"M8"])
def test_a_dtype_that_is_not_of_numbers_is_refused(tmp_path, code):
    with pytest.raises(CheckpointError, match=f"`{code.decode()}` is not a dtype of numbers"):
        read_torch_file(archived(tmp_path / "file", pickled_dtype(code)))


@pytest.mark.parametrize(
    "state",
    [
        STATE.replace(b"NNN", b"N"),  # crashes NumPy 2.4
        b"q\1" + STATE + b"h\1" + STATE.replace(b"NNN", b"N"),
        STATE + STATE.replace(b"NNN", b"N"),
        STATE.replace(b"K\0tb", b"K\1tb"),
        b"q\1" + STATE + b"(K\0K\0K\0K\0K\0K\0tq\2h\1h\2b",
    ],
    ids=["short", "second", "second at once", "flags", "from the memo"],
)
def test_a_forged_state_of_a_dtype_is_refused(tmp_path, state):
    with pytest.raises(CheckpointError, match="whose argument is not written out"):
        read_torch_file(archived(tmp_path / "file", pickled_dtype(b"f4", state)))


@pytest.mark.parametrize("value", [np.dtype("f4"), 2 * [np.dtype("i8")], (np.bool_(True), np.bool_(True))])
def test_dtypes_and_scalars_of_numpy_come_back(tmp_path, value):
    torch.save(value, tmp_path / "file")
    assert read_torch_file(tmp_path / "file") == value


def test_a_storage_larger_than_the_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="forged storage, larger than the file"):
        read_torch_file(archived(tmp_path / "file", b"ctorch.storage\nUntypedStorage\n" + LARGE + b"\x85R"))


@pytest.mark.skipif(os.name != "posix", reason="needs pipes with a name")
def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_torch_file(tmp_path / "pipe")
