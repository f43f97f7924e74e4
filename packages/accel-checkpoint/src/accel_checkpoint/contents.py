"""List what the files of a checkpoint contain, and compare two checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from accel_checkpoint.file_names import METADATA_NAME, MODEL_TABLES, TORCH_SUFFIXES, numbers_of_models
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.formats.distributed import DistributedState
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_files import MappedFile, read_layout
from accel_state.errors import CheckpointError


@dataclass(frozen=True)
class Item:
    """A tensor or another value in a checkpoint.

    Attributes:
        group: Its model, such as `model 0`, or the name of the file.
        name: Its name there; of nested data the keys, joined by dots.
        kind: Its type: dtype and shape of a tensor, the type of another value.
        read: Returns it.
    """

    group: str
    name: str
    kind: str
    read: Callable[[], Any]


def contents_of(folder: Path) -> Iterator[Item]:
    """Yield what the files of a checkpoint contain, file by file. Tensors are not read.

    Raises:
        CheckpointError: If a file is damaged, or contains more than plain data.
    """
    files = SavedFiles(folder)
    for name in sorted(files.names):
        models = numbers_of_models([name]) or MODEL_TABLES.numbers([name])
        group = f"model {models[0]}" if models else name
        if name.endswith(".safetensors"):
            yield from _of_safetensors(files.path(name), group)
        elif name.endswith(TORCH_SUFFIXES):
            yield from _flattened(read_torch_file(files.path(name), mmap=True), group)
        elif name.endswith(f"/{METADATA_NAME}"):
            inner = name.removesuffix(f"/{METADATA_NAME}")
            yield from _of_parts(DistributedState(files, inner), group if models else inner)


def differences(old: Path, new: Path, *, values: bool) -> Iterator[tuple[str, str, str]]:
    """Yield mark (`+`, `-` or `~`), label and difference of each item that is not the same in two checkpoints.

    Args:
        old: A checkpoint.
        new: Another one.
        values: Also compare values, which reads all tensors that both have.

    Raises:
        CheckpointError: If a folder has no checkpoint, or as `contents_of`.
    """
    before, after = ({(item.group, item.name): item for item in contents_of(folder)} for folder in (old, new))
    for folder, items in ((old, before), (new, after)):
        if not items:
            raise CheckpointError(f"There is no checkpoint in `{folder}`. Name the folder of one checkpoint.")
    for key in before | after:
        label = ": ".join(key)
        if key not in after:
            yield "-", label, before[key].kind
        elif key not in before:
            yield "+", label, after[key].kind
        elif before[key].kind != after[key].kind:
            yield "~", label, f"{before[key].kind} -> {after[key].kind}"
        elif values:
            reason = _difference(before[key].read(), after[key].read())
            if reason:
                yield "~", label, reason


def _of_safetensors(path: Path, group: str) -> Iterator[Item]:
    layout, file = read_layout(path), MappedFile(path)
    for name, place in sorted(layout.ranges.items()):
        kind = f"{_name_of(place.dtype)} {_shape(place.shape)}"
        yield Item(group, name, kind, partial(file.tensor, place))


def _of_parts(state: DistributedState, group: str) -> Iterator[Item]:
    for entry in state.entries.values():
        path = entry.path[1:] if group.startswith("model ") else entry.path
        kind = "value" if entry.dtype is None else f"{_name_of(entry.dtype)} {_shape(entry.shape)}"
        yield Item(group, ".".join(map(str, path)), kind, partial(state.value, entry))


def _flattened(content: Any, group: str, *path: str) -> Iterator[Item]:
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from _flattened(value, group, *path, str(key))
    elif isinstance(content, (list, tuple)) and any(
        isinstance(value, (Mapping, torch.Tensor)) for value in content
    ):
        for index, value in enumerate(content):
            yield from _flattened(value, group, *path, str(index))
    else:
        is_tensor = isinstance(content, torch.Tensor)
        kind = f"{_name_of(content.dtype)} {_shape(content.shape)}" if is_tensor else type(content).__name__
        yield Item(group, ".".join(path), kind, lambda: content)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def _difference(old: Any, new: Any) -> str:
    """Return how two values of the same kind differ; an empty string if they do not. NaN equals NaN."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return "" if _are_equal(old, new) else f"{_shortened(old)} -> {_shortened(new)}"
    old, new = _comparable(old), _comparable(new)
    if torch.equal(old, new):
        return ""
    if not old.is_floating_point() and not old.is_complex():
        return f"{int((old != new).sum())} of {old.numel()} values differ"
    if old.is_floating_point():
        old, new = old.double(), new.double()
    differs = (old != new) & ~(old.isnan() & new.isnan())
    if not differs.any():
        return ""
    largest = (old - new).abs()[differs].nan_to_num(nan=math.inf, posinf=math.inf).max()
    return f"{int(differs.sum())} of {old.numel()} values differ, by at most {largest:.3g}"


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in a layout and a dtype that torch compares."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return tensor.view(torch.uint8)
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor


def _are_equal(old: Any, new: Any) -> bool:
    """Whether two values that are not tensors are equal, nested values included."""
    if type(old) is not type(new):
        return False
    if isinstance(old, Mapping):
        return old.keys() == new.keys() and all(_are_equal(old[key], new[key]) for key in old)
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(map(_are_equal, old, new))
    if hasattr(old, "__array__"):  # of numpy, which compares element by element
        return bool(old.shape == new.shape and old.tobytes() == new.tobytes())
    return bool(old == new or (old != old and new != new))


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
