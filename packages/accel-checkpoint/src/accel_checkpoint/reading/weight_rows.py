"""Rows of the tensors in safetensors files, read into memory that is there without reading the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from accel_checkpoint.formats.safetensor_ranges import ByteRange, SafetensorsLayout, read_layout
from accel_checkpoint.formats.weight_files import CheckpointFile, checkpoint_files
from accel_state.errors import CheckpointError

_BUFFER_BYTES = 16 << 20
"""Most bytes read at a time where values are converted or go to another device."""


class WeightRows:
    """The tensors of a checkpoint by name; only the headers of its files are read at first.

    Args:
        checkpoint: A safetensors file, an index of several (``.json``), or a folder with one of them.

    Raises:
        CheckpointError: If there are none, one is damaged, or one lacks what the index lists for it.
    """

    def __init__(self, checkpoint: str | os.PathLike[str]) -> None:
        self._places: dict[str, tuple[Path, ByteRange]] = {}
        second_names: dict[str, str] = {}
        for file in checkpoint_files(checkpoint):
            layout = _layout_of(file)
            for name in file.names or layout.ranges:
                self._places[name] = (file.path, layout[name])
            second_names |= layout.second_names
        self.second_names: Mapping[str, str] = {
            name: stored
            for name, stored in second_names.items()
            if stored in self._places and name not in self._places
        }
        """The stored name of a tied weight, by each further name."""

    def __iter__(self) -> Iterator[str]:
        """Yield the stored names."""
        return iter(self._places)

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this stored or further name."""
        return name in self._places or name in self.second_names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        return self._place(name)[1].shape

    @torch.no_grad()
    def read_into(self, part: torch.Tensor, name: str, *, first_row: int = 0) -> None:
        """Fill ``part`` with consecutive rows of a tensor, converted to its dtype and on its device.

        Args:
            part: A contiguous tensor whose shape is that of the tensor but for the number of rows.
            name: The tensor.
            first_row: The row with which ``part`` begins.

        Raises:
            CheckpointError: If the file has become shorter.
        """
        path, place = self._place(name)
        start = place.start
        if first_row:
            start += first_row * (place.num_bytes // place.shape[0])
        if part.is_cpu and part.dtype == place.dtype:
            _read(path, part, start)
            return
        values = part.view(-1)
        buffer = torch.empty(min(len(values), _BUFFER_BYTES // place.dtype.itemsize), dtype=place.dtype)
        for begin in range(0, len(values), max(1, len(buffer))):
            filled = buffer[: len(values) - begin]
            _read(path, filled, start + begin * place.dtype.itemsize)
            values[begin : begin + len(filled)].copy_(filled)

    def _place(self, name: str) -> tuple[Path, ByteRange]:
        return self._places[self.second_names.get(name, name)]


def _layout_of(file: CheckpointFile) -> SafetensorsLayout:
    if file.path.suffix != ".safetensors":
        raise CheckpointError(
            f"`{file.path}` is no safetensors file, and parts of tensors can be read from these only. Load it whole "
            "and save it with `safe_serialization=True`."
        )
    layout = read_layout(file.path)
    missing = sorted((file.names or frozenset()) - layout.ranges.keys() - layout.second_names.keys())
    if missing:
        raise CheckpointError(
            f"`{file.path}` lacks `{missing[0]}`, which the index lists for it. Copy the checkpoint again."
        )
    return layout


def _read(path: Path, tensor: torch.Tensor, start: int) -> None:
    """Fill a contiguous tensor on the CPU with the bytes from ``start`` on."""
    memory = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while len(memory):
            num_bytes = file.readinto(memory)
            if not num_bytes:
                raise CheckpointError(f"`{path}` ends too early. Copy or save it again.")
            memory = memory[num_bytes:]
