"""Mappings from names to stored weights: in memory, in an offload folder, or in safetensors files."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from accel_bigmodel.offload.folder import (
    check_identity,
    file_identities,
    invalid_entry,
    load_offloaded_weight,
    read_offload_index,
    weight_file,
)
from accel_bigmodel.tensors.dtypes import as_torch_dtype
from accel_checkpoint.formats.safetensor_ranges import MappedFile, SafetensorsLayout, read_layout
from accel_state.errors import CheckpointError, ConfigError

# Further weights are mapped at each use; Linux allows a process 65,530 mappings by default.
_MAX_MAPPED = 4_096


class PrefixedDataset(Mapping[str, Any]):
    """The part of a mapping whose keys start with ``prefix``, under keys without it."""

    def __init__(self, dataset: Mapping[str, Any], prefix: str) -> None:
        self.dataset = dataset
        self.prefix = prefix

    def __getitem__(self, key: str) -> Any:
        return self.dataset[f"{self.prefix}{key}"]

    def __contains__(self, key: object) -> bool:
        return f"{self.prefix}{key}" in self.dataset

    def __deepcopy__(self, memo: dict[int, Any]) -> PrefixedDataset:
        known = isinstance(self.dataset, dict | PrefixedDataset | OffloadedWeightsLoader)
        return PrefixedDataset(copy.deepcopy(self.dataset, memo) if known else self.dataset, self.prefix)

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self.dataset if key.startswith(self.prefix)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class OffloadedWeightsLoader(Mapping[str, torch.Tensor]):
    """A mapping of weights in memory and on disk; those on disk are mapped, and read when they are used.

    An index may point to any safetensors file that this process can read, so whoever can write to the folder chooses
    what the model reads. Files are mapped privately: writes to the tensors are visible nowhere else.

    Args:
        state_dict: Weights in memory.
        save_folder: A folder that `offload_state_dict` wrote.
        index: Instead of the folder's own index. An entry has ``dtype`` and ``shape``, or points into
            a safetensors file: ``safetensors_file``, ``weight_name`` and, if it is to be cast, ``dtype``.
        device: The device of weights from safetensors files; the CPU by default.

    Raises:
        ConfigError: If neither weights nor a place to look for them are given.
    """

    def __init__(
        self,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        save_folder: str | os.PathLike[str] | None = None,
        index: Mapping[str, Any] | None = None,
        device: str | int | torch.device | None = None,
    ) -> None:
        if state_dict is None and save_folder is None and index is None:
            raise ConfigError("Give weights: a `state_dict`, a `save_folder` or an `index`.")
        self.state_dict: Mapping[str, torch.Tensor] = {} if state_dict is None else state_dict
        if index is None and save_folder is not None:
            index = read_offload_index(save_folder)
        self.index: Mapping[str, Any] = {} if index is None else index
        self.save_folder = None if save_folder is None else Path(save_folder)
        self.device = device
        # peft takes the first key for one on disk.
        self.all_keys = [*self.index, *(key for key in self.state_dict if key not in self.index)]
        self._files: dict[str, tuple[SafetensorsLayout, MappedFile]] = {}
        self._mapped: dict[str, torch.Tensor] = {}
        self._identities = {} if self.save_folder is None else file_identities(self.save_folder)

    def __getitem__(self, key: str) -> torch.Tensor:
        if key in self.state_dict:
            return self.state_dict[key]
        entry = self.index[key]
        try:
            name = entry.get("weight_name", key)
            if entry.get("safetensors_file") is not None:
                return self._from_safetensors(entry["safetensors_file"], name, entry)
        except (AttributeError, LookupError, TypeError, ValueError, FileNotFoundError) as error:
            raise invalid_entry(key, entry) from error
        if self.save_folder is None:
            raise CheckpointError(
                f"`{key}` is in an offload folder, but no `save_folder` was given. Pass the folder."
            )
        if name in self._mapped:
            return self._mapped[name]
        path = weight_file(self.save_folder, name)
        check_identity(path, self._identities.get(path.name))
        weight = load_offloaded_weight(path, entry)
        if len(self._mapped) < _MAX_MAPPED:
            self._mapped[name] = weight
        return weight

    def __contains__(self, key: object) -> bool:
        return key in self.state_dict or key in self.index

    def __iter__(self) -> Iterator[str]:
        return iter(self.all_keys)

    def __len__(self) -> int:
        return len(self.all_keys)

    def __deepcopy__(self, memo: dict[int, Any]) -> OffloadedWeightsLoader:
        return self.replaced(copy.deepcopy(self.state_dict, memo), self.index)

    def replaced(
        self, state_dict: Mapping[str, torch.Tensor], index: Mapping[str, Any]
    ) -> OffloadedWeightsLoader:
        """Return a loader of other weights from the same folder, which maps the files again: no write is shared."""
        made = OffloadedWeightsLoader(state_dict, None, index, self.device)
        made.save_folder, made._identities = self.save_folder, self._identities
        return made

    def read_ahead(self, key: str) -> None:
        """Start to read a weight from its safetensors file into memory."""
        entry = self.index.get(key, {})
        if key not in self.state_dict and entry.get("safetensors_file") is not None:
            layout, file = self._open(entry["safetensors_file"])
            file.read_ahead(layout[entry.get("weight_name", key)])

    def _from_safetensors(self, path: str, name: str, entry: Mapping[str, Any]) -> torch.Tensor:
        layout, file = self._open(path)
        tensor = file.tensor(layout[name])
        dtype = entry.get("dtype")
        if tensor.is_floating_point() and dtype not in (None, str(tensor.dtype).removeprefix("torch.")):
            tensor = tensor.to(as_torch_dtype(dtype))
        return tensor if self.device is None else tensor.to(self.device)

    def _open(self, path: str) -> tuple[SafetensorsLayout, MappedFile]:
        if path not in self._files:
            self._files[path] = (read_layout(Path(path)), MappedFile(Path(path)))
        return self._files[path]


def is_shared(weights: Mapping[str, Any], key: str) -> bool:
    """Whether a mapping returns the caller's own tensor; tensors from disk belong to the reader."""
    if isinstance(weights, PrefixedDataset):
        return is_shared(weights.dataset, f"{weights.prefix}{key}")
    if isinstance(weights, OffloadedWeightsLoader):
        return key in weights.state_dict
    return isinstance(weights, dict)


def read_ahead(weights: Mapping[str, Any], key: str) -> None:
    """Start to read a weight from its file into memory; does nothing for weights in memory."""
    if isinstance(weights, PrefixedDataset):
        read_ahead(weights.dataset, f"{weights.prefix}{key}")
    elif isinstance(weights, OffloadedWeightsLoader):
        weights.read_ahead(key)


def extract_submodules_state_dict(
    state_dict: Mapping[str, Any], submodule_names: list[str]
) -> dict[str, Any]:
    """Return the entries of a state dict that belong to one of ``submodule_names``."""
    wanted = set(submodule_names)
    return {
        name: value
        for name, value in state_dict.items()
        if "" in wanted or not wanted.isdisjoint(accumulate(name.split("."), "{}.{}".format))
    }
