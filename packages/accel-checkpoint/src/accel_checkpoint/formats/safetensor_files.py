"""safetensors files: a header with names, dtypes and offsets, then the bytes. They cannot run code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.files import check_regular, naming_read_errors
from accel_checkpoint.formats.deferred import DeferredTensor, second_names_in
from accel_checkpoint.formats.safetensor_writing import write_safetensors
from accel_checkpoint.formats.weight_names import SAFETENSORS
from accel_state.errors import CheckpointError


class SafetensorsWriter:
    """Writes tensors to safetensors files; tied weights are stored once.

    The metadata of the file maps the further names of tied weights to the stored name, as
    ``safetensors.torch.save_model`` does.
    """

    names = SAFETENSORS

    def __init__(self, state: Mapping[str, Any]) -> None:
        _reject_unsupported_values(state)
        self.second_names = second_names_in(state)
        self.tensors = {name: tensor for name, tensor in state.items() if name not in self.second_names}

    def metadata(self, members: Iterable[str]) -> dict[str, str]:
        """Return the metadata of a file with the tensors called ``members``."""
        stored = set(members)
        return {"format": "pt", **{name: kept for name, kept in self.second_names.items() if kept in stored}}

    def groups(self) -> Iterator[tuple[Sequence[str], int]]:
        """Yield each tensor on its own."""
        for name, tensor in self.tensors.items():
            yield (name,), tensor.nbytes

    def write(self, path: Path, members: Sequence[str]) -> None:
        """Write ``members``, moved to the CPU and made contiguous."""
        tensors = {name: self.tensors[name] for name in members}
        try:
            with path.open("wb") as file:
                write_safetensors(file, tensors, metadata=self.metadata(members))
        except OSError as error:
            raise CheckpointError(
                f"`{path}` could not be written: {error}. "
                "Free space on the disk or fix its permissions, and save again."
            ) from error


class SafetensorsReader:
    """Reads tensors from an open safetensors file, which stays mapped as long as they exist."""

    def __init__(self, file: Any) -> None:
        self._file = file
        stored = set(file.keys())
        metadata: dict[str, str] = file.metadata() or {}
        self._second_names = {
            name: kept for name, kept in metadata.items() if kept in stored and name not in stored
        }

    def keys(self) -> Iterator[str]:
        """Yield the stored names, then the further names of tied weights."""
        yield from self._file.keys()
        yield from self._second_names

    def shape(self, name: str) -> torch.Size | None:
        """Return the shape from the header."""
        return torch.Size(self._file.get_slice(self._stored(name)).get_shape())

    def read(self, name: str) -> torch.Tensor:
        """Return the tensor, on the CPU."""
        tensor: torch.Tensor = self._file.get_tensor(self._stored(name))
        return tensor

    def _stored(self, name: str) -> str:
        return self._second_names.get(name, name)


@contextmanager
def open_safetensors(path: Path) -> Iterator[SafetensorsReader]:
    """Open a safetensors file for reading."""
    check_regular(path)
    try:
        try:
            file = safe_open(path, framework="pt")
        except FileNotFoundError:  # safetensors 0.7 calls every file missing that it cannot open
            with naming_read_errors(path), path.open("rb"):
                file = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise CheckpointError(
            f"`{path}` is not a readable safetensors file: {error}. "
            "It may be cut short; copy or save it again."
        ) from error
    with file:
        yield SafetensorsReader(file)


def _reject_unsupported_values(state: Mapping[str, Any]) -> None:
    reasons = {name: _why_unsupported(value) for name, value in state.items()}
    refused = [f"`{name}` is {reason}" for name, reason in reasons.items() if reason]
    if refused:
        raise CheckpointError(
            f"safetensors holds plain dense tensors only, but {'; '.join(refused)}. "
            "Leave these out of the state dict, gather or convert them, or pass `safe_serialization=False`."
        )


def _why_unsupported(value: Any) -> str | None:
    if isinstance(value, DeferredTensor):
        return None
    if not isinstance(value, torch.Tensor):
        return f"of type {type(value).__name__}"
    if _is_wrapper(value):
        return f"a {type(value).__name__}"
    if value.layout != torch.strided:
        return f"a tensor of layout {value.layout}"
    if value.is_quantized:
        return f"quantized ({value.dtype})"
    return None


def _is_wrapper(value: torch.Tensor) -> bool:
    return is_traceable_wrapper_subclass(value)
