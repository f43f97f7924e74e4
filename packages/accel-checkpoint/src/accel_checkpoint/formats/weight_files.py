"""Find and read the weight files of a checkpoint, inside one folder only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_checkpoint.file_names import PICKLED, SAFETENSORS, weight_format
from accel_checkpoint.files import is_plain_name, read_json
from accel_checkpoint.formats.safetensor_ranges import MappedFile, read_layout
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.saved_files import SavedFiles
from accel_state.errors import CheckpointError

_PREFERRED = (SAFETENSORS.whole, SAFETENSORS.index, PICKLED.whole, PICKLED.index)


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint.

    ``names`` are those that the index lists for it, ``None`` without an index, which means all.
    """

    path: Path
    names: frozenset[str] | None = None


def read_weights(path: Path) -> dict[str, Any]:
    """Return the state dict in a weight file, with tensors mapped into memory if the file allows it.

    Copy tensors before changing them, or before the file is cut short.

    Raises:
        CheckpointError: If the file is damaged, or holds anything else.
    """
    if path.suffix == ".safetensors":
        layout, mapped = read_layout(path), MappedFile(path)
        return {name: mapped.tensor(layout[name]) for name in (*layout.ranges, *layout.second_names)}
    content = read_torch_file(path, mmap=True, archives_only=False)
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"`{path}` holds a {type(content).__name__}, not a state dict. Name a file of weights."
        )
    return dict(content)


def checkpoint_files(checkpoint: str | os.PathLike[str]) -> list[CheckpointFile]:
    """Return the files of a checkpoint, in the order in which its index first names them.

    Args:
        checkpoint: A weight file, an index (``.json``), or a folder with one of them. In a folder,
            safetensors come before ``.bin`` and a whole file before an index.

    Raises:
        CheckpointError: If there is no checkpoint, there are several indexes with unknown names, a file that the
            index names is missing, or the index names a file outside its folder.
    """
    path = Path(checkpoint)
    if path.is_dir():
        path = _main_file(path)
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint at `{path}`. Check the path.")
    return _files_of_index(path) if path.suffix == ".json" else [CheckpointFile(path)]


def _main_file(folder: Path) -> Path:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    for name in _PREFERRED:
        if name in names:
            return folder / name
    found = [name for name in names if name.endswith(".index.json") or name == "index.json"]
    if not found:
        # A file with another name, such as `second.safetensors`, counts if it is the only one.
        found = [name for name in names if name.endswith((".safetensors", ".bin"))]
    shards = [name for name in found if SAFETENSORS.is_shard(name) or PICKLED.is_shard(name)]
    if shards:
        raise CheckpointError(
            f"`{folder}` holds shards (`{shards[0]}` …) without their index, which is written last: "
            "the save or the copy was interrupted. Save or copy it again."
        )
    if len(found) > 1:
        raise CheckpointError(
            f"`{folder}` holds several checkpoints: {', '.join(found)}. Name the file you mean."
        )
    if not found:
        raise CheckpointError(
            f"`{folder}` holds no checkpoint: none of {', '.join(_PREFERRED)}, no other index or weight file."
        )
    return folder / found[0]


def _files_of_index(index: Path) -> list[CheckpointFile]:
    members: dict[str, set[str]] = {}
    for name, file_name in _weight_map(index).items():
        members.setdefault(_inside(index, file_name), set()).add(name)
    missing = [file_name for file_name in members if not (index.parent / file_name).is_file()]
    if missing:
        raise CheckpointError(
            f"`{index}` names files that are not beside it: {', '.join(missing)}. Copy them there."
        )
    return [CheckpointFile(index.parent / file, frozenset(names)) for file, names in members.items()]


def _weight_map(index: Path) -> Mapping[str, Any]:
    content = read_json(index)
    weight_map = content.get("weight_map", content) if isinstance(content, dict) else content
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"The index `{index}` must map names of weights to names of files.")
    return weight_map


def _inside(index: Path, file_name: Any) -> str:
    """Return ``file_name`` if it names a file in the folder of ``index`` on every operating system."""
    if not is_plain_name(file_name) or "/" in file_name:
        raise CheckpointError(
            f"The index `{index}` names the file `{file_name}`. Only plain names of files beside it are read."
        )
    return str(file_name)


def read_model(files: SavedFiles, index: int) -> dict[str, Any]:
    """Return the state dict of a model in a checkpoint, mapped: from safetensors or else `.bin`, one file or shards.

    Copy tensors before the files are removed.

    Raises:
        CheckpointError: If there are no files, one is damaged, or an index names anything but a regular file beside it.
    """
    for names in (weight_format(index, safe=True), weight_format(index, safe=False)):
        for name in (names.whole, names.index):
            if name in files.names:
                members = checkpoint_files(files.path(name))
                if name == names.index:
                    for file in members:
                        files.path(file.path.name)
                return read_state(members)
    raise CheckpointError(
        f"`{weight_format(index, safe=True).whole}` is missing in the checkpoint `{files.folder}`. "
        "Load another checkpoint, or copy this one again with all its files."
    )


def read_state(files: list[CheckpointFile]) -> dict[str, Any]:
    """Return the state dict in ``files``; its tensors are mapped, so copy them before the files are removed."""
    state: dict[str, Any] = {}
    for file in files:
        content = read_weights(file.path)
        missing = sorted((file.names or frozenset()) - content.keys())
        if missing:
            raise CheckpointError(
                f"`{file.path}` lacks `{missing[0]}`, which the index lists for it. Copy the checkpoint again."
            )
        state.update({name: content[name] for name in file.names or content})
    return state
