"""``.bin`` files, written by ``torch.save`` and read with ``weights_only``, so that they cannot run code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from accel_checkpoint.formats.deferred import DeferredTensor, is_deferred
from accel_checkpoint.formats.torch_archive import write_torch_archive
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_names import PICKLED
from accel_ops.shared_tensors import id_tensor_storage, id_tensor_view
from accel_state.errors import CheckpointError


class PickleWriter:
    """Writes a state dict with ``torch.save``; tensors that share memory share it in the file too."""

    names = PICKLED

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = {
            name: value.detach() if isinstance(value, torch.Tensor) else value
            for name, value in state.items()
        }

    def groups(self) -> Iterator[tuple[Sequence[str], int]]:
        """Yield the names that share a storage together, in the order of their first name."""
        sharing: dict[object, list[str]] = {}
        for name, value in self._state.items():
            sharing.setdefault(_memory_of(name, value), []).append(name)
        for names in sharing.values():
            compact = _compact({name: self._state[name] for name in names})
            storages = {_memory_of(name, value): value for name, value in compact.items()}
            yield names, sum(_stored_bytes(value) for value in storages.values())

    def write(self, path: Path, members: Sequence[str]) -> None:
        """Write ``members``, moved to the CPU."""
        sharing: dict[object, dict[str, Any]] = {}
        for name in members:
            value = self._state[name]
            sharing.setdefault(_memory_of(name, value), {})[name] = value
        content: dict[str, Any] = {}
        for group in sharing.values():
            content.update(_on_cpu(_compact(group)))
        ordered = {name: content[name] for name in members}
        if is_deferred(ordered):
            with path.open("wb") as file:
                write_torch_archive(file, ordered)
        else:
            torch.save(ordered, path)


class PickleReader:
    """The state dict of a ``torch.save`` file, memory-mapped if the file allows it."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def keys(self) -> Iterator[str]:
        """Yield the names in the file."""
        yield from self._content

    def shape(self, name: str) -> torch.Size | None:
        """Return the shape of a tensor, ``None`` for other values."""
        value = self._content[name]
        return value.shape if isinstance(value, torch.Tensor) else None

    def read(self, name: str) -> Any:
        """Return the value called ``name``."""
        return self._content[name]


@contextmanager
def open_pickled(path: Path) -> Iterator[PickleReader]:
    """Open a ``torch.save`` file for reading."""
    content = read_torch_file(path, mmap=True, archives_only=False)
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"`{path}` holds a {type(content).__name__}, not a state dict. Name a file of weights."
        )
    yield PickleReader(content)


def _memory_of(name: str, value: Any) -> object:
    if isinstance(value, DeferredTensor):
        return id(value)
    return id_tensor_storage(value) if _has_storage(value) else name


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and type(value) is torch.Tensor


def _stored_bytes(value: Any) -> int:
    if isinstance(value, DeferredTensor):
        return value.nbytes
    if _has_storage(value):
        return int(value.untyped_storage().nbytes())
    # For a sparse tensor, the dense size: splitting into files needs only an upper bound.
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _compact(group: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a tensor that is the only view of a larger storage, since ``torch.save`` writes whole storages."""
    value = next(iter(group.values()))
    if not _has_storage(value) or len({id_tensor_view(tensor) for tensor in group.values()}) > 1:
        return dict(group)
    if value.untyped_storage().nbytes() == value.nbytes:
        return dict(group)
    return dict.fromkeys(group, value.clone())


def _on_cpu(group: Mapping[str, Any]) -> dict[str, Any]:
    """Move the tensors of one storage to the CPU, each distinct view once."""
    moved: dict[object, Any] = {}
    result: dict[str, Any] = {}
    for name, value in group.items():
        view = id_tensor_view(value) if _has_storage(value) else name
        if view not in moved:
            moved[view] = value.cpu() if isinstance(value, torch.Tensor) else value
        result[name] = moved[view]
    return result
