"""The table of a sharded checkpoint is a pickle of strangers: it must not run anything, nor lead out of its folder."""

import pathlib
import pickle
import struct
import tracemalloc
from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata

from accel_checkpoint.formats.distributed import Chunk, Entry, encode_metadata, read_metadata
from accel_state.errors import CheckpointError

ENTRIES = [
    Entry(
        ("model", "a.weight"),
        (Chunk("__0_0.distcp", 0, 90, (0, 0), (2, 3)), Chunk("__1_0.distcp", 5, 80, (2, 0), (1, 3))),
        torch.bfloat16,
        (3, 3),
    ),
    Entry(("model", "empty"), (), torch.int64, (0, 4)),
    Entry(("optimizer", "param_groups", 0, "lr"), (Chunk("__0_0.distcp", 90, 10),)),
]


class Malicious:
    def __reduce__(self):
        return print, ("run",)


def written(folder, content):
    path = folder / ".metadata"
    path.write_bytes(content)
    return path


def test_entries_come_back_as_they_were(tmp_path):
    read = read_metadata(written(tmp_path, encode_metadata(ENTRIES)))
    assert list(read.values()) == ENTRIES
    assert list(read) == ["model.a.weight", "model.empty", "optimizer.param_groups.0.lr"]


def test_a_table_of_an_early_python_3_11_is_read(tmp_path, monkeypatch):
    kind = dcp._MEM_FORMAT_ENCODING
    monkeypatch.setattr(kind, "__reduce_ex__", lambda self, _: (getattr, (kind, self.name)))
    table = encode_metadata(ENTRIES)
    assert b"getattr" in table
    assert list(read_metadata(written(tmp_path, table)).values()) == ENTRIES


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (Malicious(), "builtins.print"),
        (Metadata({}, storage_data=Malicious()), "builtins.print"),
        (Metadata({}, planner_data=torch.nn.Linear), "torch.nn.modules.linear.Linear"),
        (torch.load, "torch.serialization.load"),
    ],
)
def test_a_class_that_is_no_part_of_a_table_is_refused_by_name(tmp_path, capsys, content, named):
    with pytest.raises(CheckpointError, match=f"it names `{named}`.*could run code"):
        read_metadata(written(tmp_path, pickle.dumps(content)))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04", b"not a pickle", pickle.dumps({"a": 1}), pickle.dumps(None)]
)
def test_a_damaged_table_is_an_error(tmp_path, content):
    with pytest.raises(CheckpointError, match="is not a readable table"):
        read_metadata(written(tmp_path, content))


CHUNK = ENTRIES[0].chunks[0]


@pytest.mark.parametrize(
    "chunk",
    [
        replace(CHUNK, file="../secret"),
        replace(CHUNK, file="/etc/passwd"),
        replace(CHUNK, start=-1),
        replace(CHUNK, offset=(2, 0)),
        replace(CHUNK, sizes=(2, 4)),
        replace(CHUNK, offset=(0,), sizes=(2,)),
    ],
)
def test_a_part_that_cannot_be_is_refused(tmp_path, chunk):
    with pytest.raises(CheckpointError, match="is not a readable table"):
        read_metadata(written(tmp_path, encode_metadata([replace(ENTRIES[0], chunks=(chunk,))])))


def text(value):
    return b"\x8c" + bytes([len(value)]) + value.encode()


LIVE = [
    *(
        getattr(dcp, name)
        for name in ("Metadata", "TensorStorageMetadata", "MetadataIndex", "TensorProperties")
    ),
    _StorageInfo,
    torch.Size,
    torch.serialization._get_layout,
    *(getattr(pathlib, name) for name in ("PurePosixPath", "PosixPath")),
]
STATES = [b"}" + text("parts") + b")s", b"N}" + text("parts") + b")s\x86"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("live", LIVE, ids=lambda live: live.__name__)
def test_a_table_changes_no_class_of_the_process(tmp_path, live, state):
    before = dict(vars(live))
    content = b"\x80\x04" + text(live.__module__) + text(live.__name__) + b"\x93" + state + b"b."
    with pytest.raises(CheckpointError, match="is not a readable table"):
        read_metadata(written(tmp_path, content))
    assert dict(vars(live)) == before


def test_a_small_table_takes_little_memory(tmp_path):
    path = written(tmp_path, b"\x80\x02Nr" + struct.pack("<I", 2**24) + b".")
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="its memo has the index 16777216"):
        read_metadata(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
