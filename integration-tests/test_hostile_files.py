"""Files of an attacker: a reader gets plain values or an error that names the file, and nothing else.

Each attack of `hostile_pickles` is tried, and small real files of every format that users get from others are changed
(bytes flipped, cut, spliced, repeated, numbers replaced). Allowed are values, and an error of accel that names the
file; never another exception, a changed class, or memory beyond a bound.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import sys
import tracemalloc
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
from hostile_pickles import CANARY, HOSTILE
from torch.distributed.checkpoint import metadata as dcp

from accel.utils import load
from accel_bigmodel import OffloadedWeightsLoader, load_state_dict, offload_state_dict
from accel_checkpoint.files import FileEntry
from accel_checkpoint.formats.distributed import Chunk, Entry, encode_metadata, read_metadata
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_files import checkpoint_files, read_layout
from accel_checkpoint.manifest import Manifest, read_manifest, write_manifest
from accel_launch.config.file import read_config
from accel_state.errors import AccelError, CheckpointError

REPEATS = int(os.environ.get("ACCEL_TEST_REPEATS", "1"))
PLAIN = {
    "an empty array of a shape": np.empty(0),
    "a Counter": {1: 2**62},
    "a Size": (2**62, 2**62),
    "a list in itself": [],
    "a dict in itself": {},
    "doubled lists": [],
}
"""What loads, with a value of its type: it takes no more memory than the file."""
CLASSES = (
    np.ndarray, np.dtype, type(np.dtype("f4")), type(np.dtype("i8")), torch.Tensor, torch.Size, OrderedDict, Counter,
    Path, dcp.Metadata, dcp.MetadataIndex, dcp.TensorStorageMetadata,
)  # fmt: skip
MOST_MIB = 512


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Assert that no class changes in the block."""
    before = [dict(vars(kind)) for kind in CLASSES]
    yield
    assert before == [dict(vars(kind)) for kind in CLASSES]
    assert (np.dtype("f4"), np.dtype("i8").names, np.dtype("i8").str) == (np.float32, None, "<i8")


@pytest.mark.parametrize("read", [read_torch_file, load, load_state_dict])
@pytest.mark.parametrize("attack", HOSTILE)
def test_an_attack_by_a_file_is_refused(tmp_path, read, attack):
    path = tmp_path / "file.bin"
    HOSTILE[attack](path)
    tracemalloc.start()
    with unchanged_process():
        if isinstance(PLAIN.get(attack), dict if read is load_state_dict else object) and attack in PLAIN:
            assert isinstance(read(path), type(PLAIN[attack]))
        else:
            with pytest.raises(CheckpointError, match=re.escape(str(path))):
                read(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**24 + 30 * path.stat().st_size
    assert not CANARY.exists()


CONTENT = {
    "a": torch.arange(3.0), "b": [1, 2.5, "text", b"bytes", None, {"c": (True, 2**40)}], "s": torch.eye(2).to_sparse(),
    "n": np.arange(3), "f": np.float32(1), "o": OrderedDict(x=bytearray(b"xyz")), "t": {1, 2}, "z": torch.Size((2, 3)),
}  # fmt: skip


def write_archive(folder: Path) -> None:
    torch.save(CONTENT, folder / "file.bin")


def write_bare_pickle(folder: Path) -> None:
    torch.save(CONTENT, folder / "file.bin", _use_new_zipfile_serialization=False)


def write_safetensors(folder: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(2, 3), "b": torch.ones(1)}, folder / "m.safetensors")


def write_table(folder: Path) -> None:
    """Write the table of a sharded checkpoint."""
    chunks = (Chunk("__0_0.distcp", 0, 90, (0, 0), (2, 3)), Chunk("__1_0.distcp", 5, 80, (2, 0), (1, 3)))
    weights = Entry(("model", "a"), chunks, torch.bfloat16, (3, 3))
    entries = [weights, Entry(("lr",), (Chunk("__0_0.distcp", 90, 9),))]
    (folder / ".metadata").write_bytes(encode_metadata(entries))


def write_index(folder: Path) -> None:
    """Write an index of two weight files."""
    names = {name: f"{name}.safetensors" for name in ("one", "two")}
    for name, file in names.items():
        safetensors.torch.save_file({name: torch.ones(2)}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def write_offloaded(folder: Path) -> None:
    offload_state_dict(folder, {"w": torch.ones(2, 3), "v": torch.ones(1, dtype=torch.int8)})


def read_offloaded(path: Path) -> Any:
    return dict(OffloadedWeightsLoader(save_folder=path.parent))


def write_config(folder: Path) -> None:
    """Write a config file of the launcher."""
    config = {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "no", "num_processes": 2}
    (folder / "config.json").write_text(json.dumps(config))
    lines = "".join(f"{name}: {value}\n" for name, value in config.items())
    (folder / "config.yaml").write_text(lines + "fsdp_config:\n  fsdp_version: 2\n")


def write_small_manifest(folder: Path) -> None:
    entry = FileEntry("model.safetensors", 3, "xxh3:0")
    write_manifest(folder, Manifest([entry], objects={"models": ["M"]}, step=3, iteration=1))


def read_manifest_of(path: Path) -> Any:
    return read_manifest(path.parent)


class Format(NamedTuple):
    """How to write a real file, its name, how many inputs the tests read, in half a second, and by what."""

    write: Any
    name: str
    num_inputs: int
    reads: tuple[Any, ...]


FORMATS = {
    "archive": Format(write_archive, "file.bin", 250, (read_torch_file, load, load_state_dict)),
    "bare pickle": Format(write_bare_pickle, "file.bin", 250, (load, load_state_dict)),
    "safetensors": Format(write_safetensors, "m.safetensors", 833, (read_layout, load_state_dict)),
    "table": Format(write_table, ".metadata", 1500, (read_metadata,)),
    "index": Format(write_index, "model.safetensors.index.json", 1833, (checkpoint_files,)),
    "offload index": Format(write_offloaded, "index.json", 1333, (read_offloaded,)),
    "manifest": Format(write_small_manifest, "accel_checkpoint.json", 1000, (read_manifest_of,)),
    "yaml": Format(write_config, "config.yaml", 250, (read_config,)),
    "json": Format(write_config, "config.json", 1333, (read_config,)),
}
NUMBERS = [
    bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"9" * 9, b"-1", b"1e9", b"null", b"[]", b"{}", b'""',
]  # fmt: skip


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return a changed copy."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(len(changed) + 1)
        other, size = chance.randrange(len(changed) + 1), chance.randrange(1, 17)
        match chance.randrange(7):
            case 0 if place < len(changed):
                changed[place] ^= 1 << chance.randrange(8)
            case 1 if place < len(changed):
                changed[place] = chance.randrange(256)
            case 2:
                del changed[place:]
            case 3:
                del changed[place : place + size]
            case 4:
                changed[place:place] = changed[other : other + size]
            case 5:
                changed[place : place + size] = changed[other : other + size]
            case 6:
                number = chance.choice(NUMBERS)
                changed[place : place + len(number)] = number
    return bytes(changed)


def in_pickle(content: bytes, chance: random.Random) -> bytes:
    """Return an archive whose pickle is changed; changes elsewhere rarely get further than to the members."""
    begin = content.find(b"\x80\x02")
    end = content.find(b"PK\x03\x04", begin) if begin >= 0 else -1
    if end < 0 or chance.randrange(4) == 0:
        return mutated(content, chance)
    pickled = mutated(content[begin:end], chance)[: end - begin]
    return content[:begin] + pickled.ljust(end - begin, b"\0") + content[end:]


def peak_mib() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (
        2**20 if sys.platform == "darwin" else 2**10
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_changed_files_are_read_or_refused(tmp_path, name):
    format_, before_mib, outcomes = FORMATS[name], peak_mib(), Counter[str]()
    format_.write(tmp_path)
    path = tmp_path / format_.name
    content = path.read_bytes()
    with unchanged_process():
        for number in range(
            format_.num_inputs * REPEATS
        ):  # a failure shows the number, by which it is made again
            path.write_bytes(in_pickle(content, random.Random(f"0 {name} {number}")))
            for read in format_.reads:
                try:
                    read(path)
                    outcomes["read"] += 1
                except AccelError as error:
                    outcomes["refused"] += 1
                    outcomes["unnamed"] += str(tmp_path) not in str(error) and name != "offload index"
    assert not outcomes["unnamed"]
    assert min(outcomes["read"], outcomes["refused"]) > 0  # the changes are neither too small nor too large
    assert peak_mib() - before_mib < MOST_MIB
