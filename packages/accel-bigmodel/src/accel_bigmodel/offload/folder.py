"""Offload folders: one raw file per weight and an ``index.json`` with dtypes and shapes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel_bigmodel.tensors.dtypes import as_torch_dtype
from accel_bigmodel.tensors.placing import set_module_tensor_to_device
from accel_checkpoint.files import is_plain_name, read_json
from accel_checkpoint.formats.safetensor_ranges import ByteRange, MappedFile
from accel_checkpoint.formats.torch_files import DAMAGE
from accel_state.errors import CheckpointError

INDEX_NAME = "index.json"
_LARGEST_READ = 16_384  # bytes; Linux allows a process 65,530 mappings by default


def offload_weight(
    weight: torch.Tensor,
    weight_name: str,
    offload_folder: str | os.PathLike[str],
    index: MutableMapping[str, Any] | None = None,
) -> MutableMapping[str, Any] | None:
    """Write one weight to ``offload_folder`` as raw bytes, add it to ``index``, and return ``index``.

    Raises:
        CheckpointError: If the weight is on the meta device, or its name cannot be a file name.
    """
    if weight.is_meta:
        raise CheckpointError(f"`{weight_name}` cannot be offloaded: on the meta device it has no values.")
    dense = weight.detach().cpu().contiguous()
    path = weight_file(Path(offload_folder), weight_name)
    raw = dense.reshape(-1).view(torch.uint8) if dense.numel() else torch.empty(0, dtype=torch.uint8)
    _write(path, raw.numpy().data)
    if index is not None:
        index[weight_name] = {"dtype": str(dense.dtype).removeprefix("torch."), "shape": list(dense.shape)}
    return index


def load_offloaded_weight(
    weight_file: str | os.PathLike[str], weight_info: Mapping[str, Any]
) -> torch.Tensor:
    """Return a weight that `offload_weight` wrote: mapped from its file, or read if that takes a few pages only.

    Args:
        weight_file: The file.
        weight_info: Its entry in the index, with ``dtype`` and ``shape``.

    Raises:
        CheckpointError: If the file is missing or shorter than the index says, or the entry is no such table.
    """
    path = Path(weight_file)
    try:
        like = torch.empty(weight_info["shape"], dtype=as_torch_dtype(weight_info["dtype"]), device="meta")
    except DAMAGE as error:
        raise invalid_entry(path.stem, weight_info) from error
    shape, dtype, num_bytes = tuple(like.shape), like.dtype, like.nbytes
    if not path.is_file() or path.stat().st_size < num_bytes:
        raise CheckpointError(
            f"The offloaded weight `{path}` is missing or truncated. Offload the model again."
        )
    if num_bytes <= _LARGEST_READ:
        raw = torch.empty(num_bytes, dtype=torch.uint8)
        with path.open("rb") as file:
            file.readinto(raw.numpy().data)
        return raw.view(dtype).reshape(shape)
    return MappedFile(path).tensor(ByteRange(dtype, shape, 0, num_bytes))


def invalid_entry(name: str, entry: object) -> CheckpointError:
    """Return the error for an entry of an index that `offload_weight` did not write, or whose file is missing."""
    return CheckpointError(
        f"The offload index has an invalid entry for `{name}`: {entry!r:.200}. Offload the model again."
    )


def save_offload_index(index: Mapping[str, Any], offload_folder: str | os.PathLike[str]) -> None:
    """Add ``index`` to the ``index.json`` of a folder; nothing is written if it is empty."""
    if not index:
        return
    path = Path(offload_folder, INDEX_NAME)
    merged = {**(read_offload_index(offload_folder) if path.is_file() else {}), **index}
    _write(path, (json.dumps(merged, indent=2) + "\n").encode())


def _write(path: Path, content: bytes | memoryview) -> None:
    """Replace a file; models that map the previous one keep their values, and links planted here are not followed."""
    staged = path.with_name(path.name + ".part")
    staged.unlink(missing_ok=True)
    with staged.open("xb") as file:
        file.write(content)
    staged.replace(path)


def read_offload_index(offload_folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the index of an offload folder.

    Raises:
        CheckpointError: If there is none, or it cannot be read.
    """
    path = Path(offload_folder, INDEX_NAME)
    if not path.is_file():
        raise CheckpointError(f"`{offload_folder}` holds no offloaded weights: `{INDEX_NAME}` is missing.")
    index = read_json(path)
    if not isinstance(index, dict):
        raise CheckpointError(f"The index `{path}` must be a JSON object with one entry per weight.")
    return index


def offload_state_dict(save_dir: str | os.PathLike[str], state_dict: Mapping[str, torch.Tensor]) -> None:
    """Write every tensor of a state dict to a folder, and its index last."""
    Path(save_dir).mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    for name, tensor in state_dict.items():
        offload_weight(tensor, name, save_dir, index)
    save_offload_index(index, save_dir)


def load_offloaded_weights(
    model: nn.Module, index: Mapping[str, Any] | None, offload_folder: str | os.PathLike[str]
) -> None:
    """Load the weights in ``index`` back into ``model``, on the CPU."""
    for name, info in (index or {}).items():
        weight = load_offloaded_weight(weight_file(Path(offload_folder), name), info)
        set_module_tensor_to_device(model, name, "cpu", value=weight.clone())


def file_identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the weight files of a folder by name; one that is saved again has another identity."""
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: _identity(entry.stat()) for entry in entries if entry.name.endswith(".dat")}


def check_identity(path: Path, known: tuple[int, int] | None) -> None:
    """Raise a `CheckpointError` if a weight file is no longer the one that was known."""
    if known is not None and path.is_file() and _identity(path.stat()) != known:
        raise CheckpointError(
            f"`{path}` has been replaced since this model was offloaded: another model uses the same offload "
            "folder. Give each model a folder of its own, and offload this one again."
        )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def weight_file(folder: Path, name: str) -> Path:
    """Return the file of a weight; names that lead out of the folder are refused."""
    if not is_plain_name(f"{name}.dat") or "/" in str(name):
        raise CheckpointError(f"`{name}` cannot be the name of a file inside `{folder}`.")
    return folder / f"{name}.dat"
