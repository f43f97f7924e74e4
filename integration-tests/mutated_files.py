"""Read mutated files of every format that users get from others.

Small real files are changed (bytes flipped, cut, spliced, repeated, numbers replaced) and read by the functions that
users call. Allowed are values, and an error of accel that names the file; never another exception, a changed class, or
memory beyond a bound. A failure names the number of its input.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch.distributed.checkpoint import metadata as dcp

from accel.utils import load
from accel_bigmodel import OffloadedWeightsLoader, load_state_dict, offload_state_dict
from accel_checkpoint.files import FileEntry
from accel_checkpoint.formats.distributed import Chunk, Entry, encode_metadata, read_metadata
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_files import checkpoint_files, read_layout
from accel_checkpoint.manifest import Manifest, read_manifest, write_manifest
from accel_launch.config.file import read_config
from accel_state.errors import AccelError

CLASSES = (
    np.ndarray, np.dtype, type(np.dtype("f4")), torch.Tensor, torch.Size, OrderedDict, Counter, Path, dcp.Metadata,
    dcp.MetadataIndex, dcp.TensorStorageMetadata,
)  # fmt: skip
MOST_MIB = 512
NUMBERS = [
    bytes(4),
    b"\xff" * 4,
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"9" * 9,
    b"-1",
    b"1e9",
    b"null",
    b"[]",
    b"{}",
    b'""',
]


class Failure(AssertionError):
    """An outcome that is not allowed; the message names the input."""


@dataclass(frozen=True)
class Format:
    """A kind of file: how to write a real one into a folder, which file to change, and how to read it."""

    write: Any
    name: str
    reads: tuple[Any, ...]


CONTENT = {
    "a": torch.arange(3.0), "b": [1, 2.5, "text", b"bytes", None, {"c": (True, 2**40)}], "s": torch.eye(2).to_sparse(),
    "n": np.arange(3), "f": np.float32(1), "o": OrderedDict(x=bytearray(b"xyz")), "t": {1, 2}, "z": torch.Size((2, 3)),
}  # fmt: skip


def write_table(folder):
    """Write the table of a sharded checkpoint."""
    chunks = (Chunk("__0_0.distcp", 0, 90, (0, 0), (2, 3)), Chunk("__1_0.distcp", 5, 80, (2, 0), (1, 3)))
    entries = [
        Entry(("model", "a"), chunks, torch.bfloat16, (3, 3)),
        Entry(("lr",), (Chunk("__0_0.distcp", 90, 9),)),
    ]
    (folder / ".metadata").write_bytes(encode_metadata(entries))


def write_index(folder):
    """Write an index of two weight files."""
    for name in ("one", "two"):
        safetensors.torch.save_file({name: torch.ones(2)}, folder / f"{name}.safetensors")
    names = {name: f"{name}.safetensors" for name in ("one", "two")}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def write_offloaded(folder):
    """Write an offload folder."""
    offload_state_dict(folder, {"w": torch.ones(2, 3), "v": torch.ones(1, dtype=torch.int8)})


def read_offloaded(path):
    """Return what the index of an offload folder leads to."""
    return dict(OffloadedWeightsLoader(save_folder=path.parent))


def write_config(folder):
    """Write a config file of the launcher."""
    config = {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "no", "num_processes": 2}
    (folder / "config.json").write_text(json.dumps(config))
    lines = "".join(f"{name}: {value}\n" for name, value in config.items())
    (folder / "config.yaml").write_text(lines + "fsdp_config:\n  fsdp_version: 2\n")


def write_small_manifest(folder):
    """Write the manifest of a checkpoint."""
    entry = FileEntry("model.safetensors", 3, "xxh3:0")
    write_manifest(folder, Manifest([entry], objects={"models": ["M"]}, step=3, iteration=1))


def saved(name, content=None, **options):
    """Return a function that writes a `torch.save` file."""
    return lambda folder: torch.save(CONTENT if content is None else content, folder / name, **options)


FORMATS = {
    "archive": Format(saved("file.bin"), "file.bin", (read_torch_file, load, load_state_dict)),
    "bare pickle": Format(
        saved("file.bin", _use_new_zipfile_serialization=False), "file.bin", (load, load_state_dict)
    ),
    "safetensors": Format(
        lambda folder: safetensors.torch.save_file(
            {"a": torch.ones(2, 3), "b": torch.ones(1)}, folder / "m.safetensors"
        ),
        "m.safetensors",
        (read_layout, load_state_dict),
    ),
    "table": Format(write_table, ".metadata", (read_metadata,)),
    "index": Format(write_index, "model.safetensors.index.json", (checkpoint_files,)),
    "offload index": Format(write_offloaded, "index.json", (read_offloaded,)),
    "manifest": Format(
        write_small_manifest, "accel_checkpoint.json", (lambda path: read_manifest(path.parent),)
    ),
    "yaml": Format(write_config, "config.yaml", (read_config,)),
    "json": Format(write_config, "config.json", (read_config,)),
}


SAMPLE = {
    "archive": 250,
    "bare pickle": 250,
    "safetensors": 833,
    "table": 1_500,
    "index": 1_833,
    "offload index": 1_333,
    "manifest": 1_000,
    "yaml": 250,
    "json": 1_333,
}
"""How many inputs the tests read: half a second of each format, and more with `ACCEL_TEST_REPEATS`."""


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


def read_mutated(name: str, num_inputs: int, *, folder: Path) -> Counter[str]:
    """Read ``num_inputs`` changed files of a format, and return how often each outcome came.

    Raises:
        Failure: At the first outcome that is not allowed.
    """
    kind = FORMATS[name]
    kind.write(folder)
    path = folder / kind.name
    content = path.read_bytes()
    outcomes: Counter[str] = Counter()
    before = [dict(vars(one)) for one in CLASSES]
    for number in range(num_inputs):
        chance = random.Random(f"0 {name} {number}")
        path.write_bytes(in_pickle(content, chance))
        for read in kind.reads:
            try:
                read(path)
                outcomes["read"] += 1
            except AccelError as error:
                outcomes["refused"] += 1
                if str(folder) not in str(error) and name != "offload index":
                    raise Failure(f"input {number} of `{name}`: {error} names no file") from error
            except Exception as error:
                kept = Path(tempfile.gettempdir(), f"failed-{name.replace(' ', '-')}-{number}")
                kept.write_bytes(path.read_bytes())
                raise Failure(f"input {number} of `{name}` ({kept}): {error!r:.300}") from error
        if number % 64 == 0:
            check_process(before, f"input {number} of `{name}`")
    check_process(before, f"inputs of `{name}`")
    return outcomes


def check_process(before, where):
    """Raise a `Failure` if a class has changed, or much memory was taken."""
    for one, members in zip(CLASSES, before, strict=True):
        if dict(vars(one)) != members:
            raise Failure(f"{where}: `{one.__name__}` has changed")
    if np.dtype("f4") != np.float32 or np.dtype("i8").names is not None:
        raise Failure(f"{where}: a dtype of NumPy has changed")


def peak_mib() -> int:
    """Return the most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // (2**20 if sys.platform == "darwin" else 2**10)
