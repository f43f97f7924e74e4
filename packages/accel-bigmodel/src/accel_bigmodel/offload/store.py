"""Stored weights by name: in memory, in safetensors files, or in the raw files of offload folders.

The ``index.json`` of an offload folder names the safetensors file of each weight, in the folder or elsewhere. Folders
of Accelerate and of earlier versions have a raw file per weight, with its dtype and shape in the index.
"""

from __future__ import annotations

import copy
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from accel_bigmodel.dtypes import as_torch_dtype
from accel_bigmodel.planning.device_maps import DeviceMap, device_of
from accel_checkpoint.files import is_plain_name, read_json
from accel_checkpoint.formats.torch_files import DAMAGE
from accel_checkpoint.formats.weight_files import ByteRange, MappedFile, SafetensorsLayout, read_layout
from accel_checkpoint.saving.pending_files import write_safetensors
from accel_checkpoint.tensors import DeferredTensor
from accel_ops.named_tensors import NamedTensor
from accel_state.errors import CheckpointError, ConfigError

INDEX_NAME = "index.json"
_OFFLOADED = re.compile(r"offloaded-[0-9a-f]{16}\.safetensors")
# Small raw files are read, not mapped: Linux allows a process 65,530 mappings by default (`vm.max_map_count`).
_LARGEST_READ = 16_384  # bytes
_MAX_MAPPED = 4_096  # raw files that stay mapped; beyond that, each use maps its file again


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
        return PrefixedDataset(_copied(self.dataset, memo), self.prefix)

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self.dataset if key.startswith(self.prefix)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class OffloadedWeightsLoader(Mapping[str, torch.Tensor]):
    """A mapping of weights in memory and on disk; those on disk are mapped, and read when they are used.

    An index may point to any safetensors file that this process can read, so write access to the folder gives control
    over the weights. Files are mapped privately: writes to the tensors are not visible elsewhere.

    Args:
        state_dict: Weights in memory, of any shape, on the CPU.
        save_folder: A folder that `offload_state_dict` wrote.
        index: Replaces the folder's index. An entry has ``dtype`` and ``shape``, or points into
            a safetensors file: ``safetensors_file``, ``weight_name`` and, if it is to be cast, ``dtype``.
        device: The device of weights from safetensors files. Default: the CPU.

    Raises:
        ConfigError: If none of the first three is given.
    """

    def __init__(
        self,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        save_folder: str | os.PathLike[str] | None = None,
        index: Mapping[str, Any] | None = None,
        device: str | int | torch.device | None = None,
    ) -> None:
        if state_dict is None and save_folder is None and index is None:
            raise ConfigError("Pass weights: a `state_dict`, a `save_folder` or an `index`.")
        self.state_dict: Mapping[str, torch.Tensor] = {} if state_dict is None else state_dict
        if index is None and save_folder is not None:
            index = read_offload_index(save_folder)
        self.index: Mapping[str, Any] = {} if index is None else index
        self.save_folder = None if save_folder is None else Path(save_folder)
        self.device = device
        # The index first: peft assumes that the first key is on disk.
        self.all_keys = [*self.index, *(key for key in self.state_dict if key not in self.index)]
        self._files: dict[str, tuple[SafetensorsLayout, MappedFile]] = {}
        self._mapped: dict[str, torch.Tensor] = {}

    def __getitem__(self, key: str) -> torch.Tensor:
        if key in self.state_dict:
            return self.state_dict[key]
        entry = self.index[key]
        try:
            name = entry.get("weight_name", key)
            if entry.get("safetensors_file") is not None:
                return self._from_safetensors(entry["safetensors_file"], name, entry)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"`{entry['safetensors_file']}` with `{key}` is missing: it was removed, or another model uses "
                "the same offload folder. Use a separate folder for each model, and offload this one again."
            ) from error
        except (AttributeError, LookupError, TypeError, ValueError, OSError) as error:
            raise _invalid_entry(key, entry) from error
        if self.save_folder is None:
            raise CheckpointError(
                f"`{key}` is in an offload folder, but no `save_folder` was given. Pass the folder."
            )
        if name in self._mapped:
            return self._mapped[name]
        weight = load_offloaded_weight(_weight_file(self.save_folder, name), entry)
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
        """Return a loader of other weights that maps the files again: no write is shared.

        Both arguments are as in the constructor; tensors have any shape and are on the CPU.
        """
        made = OffloadedWeightsLoader(state_dict, None, index, self.device)
        made.save_folder = self.save_folder
        return made

    def read_ahead(self, key: str) -> None:
        """Start to read a weight from its safetensors file into memory."""
        entry = self.index.get(key, {})
        if key not in self.state_dict and entry.get("safetensors_file") is not None:
            layout, file = self._open(entry["safetensors_file"])
            file.read_ahead(layout.ranges[entry.get("weight_name", key)])

    def _from_safetensors(self, path: str, name: str, entry: Mapping[str, Any]) -> torch.Tensor:
        layout, file = self._open(path)
        tensor = file.tensor(layout.ranges[name])
        dtype = entry.get("dtype")
        if tensor.is_floating_point() and dtype not in (None, str(tensor.dtype).removeprefix("torch.")):
            tensor = tensor.to(as_torch_dtype(dtype))
        return tensor if self.device is None else tensor.to(self.device)

    def _open(self, path: str) -> tuple[SafetensorsLayout, MappedFile]:
        if path not in self._files:
            file = Path(path)
            if self.save_folder is not None and not file.exists():
                file = self.save_folder / file.name  # the folder was moved, with the files in it
            self._files[path] = (read_layout(file), MappedFile(file))
        return self._files[path]


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """One weight in a mapping of stored weights.

    Args:
        weights: A mapping by name.
        key: The name.
        is_callers: The tensor belongs to the caller, and is copied before it may be written to.
    """

    weights: Mapping[str, Any]
    key: str
    is_callers: bool = False

    @classmethod
    def of(cls, weights: Mapping[str, Any], key: str, *, is_owned: bool) -> StoredWeight:
        """Return the weight ``key`` of ``weights``, which belongs to the model if ``is_owned``."""
        while isinstance(weights, PrefixedDataset):
            key = f"{weights.prefix}{key}"
            weights = weights.dataset
        made = cls(weights, key)
        return made if is_owned or made.is_from_file else cls(weights, key, is_callers=True)

    @property
    def is_from_file(self) -> bool:
        """Whether each read makes a new tensor, which no other code refers to."""
        if isinstance(self.weights, OffloadedWeightsLoader):
            return self.key not in self.weights.state_dict
        return not isinstance(self.weights, dict)

    def read(self) -> torch.Tensor:
        """Return the tensor, of the stored shape, on the CPU (or the loader's device); mapped if it is on disk."""
        tensor: torch.Tensor = self.weights[self.key]
        return tensor

    def read_ahead(self) -> None:
        """Start to read the tensor from its file into memory; does nothing if it is in memory already."""
        if isinstance(self.weights, OffloadedWeightsLoader):
            self.weights.read_ahead(self.key)

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredWeight:
        return self if self.is_callers else StoredWeight(_copied(self.weights, memo), self.key)


def _copied(weights: Mapping[str, Any], memo: dict[int, Any]) -> Mapping[str, Any]:
    """Return a copy of stored weights; a mapping of another class is shared."""
    is_known = isinstance(weights, dict | PrefixedDataset | OffloadedWeightsLoader)
    return copy.deepcopy(weights, memo) if is_known else weights


def offloaded_weights(
    tensors: Sequence[NamedTensor],
    device_map: DeviceMap,
    *,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    folder: str | os.PathLike[str] | None = None,
    index: Mapping[str, Any] | None = None,
    offloaded_devices: Sequence[str] = ("cpu", "disk"),
) -> OffloadedWeightsLoader:
    """Return the stored weights of offloaded modules, after writing the weights for disk to the folder.

    A tied weight is stored once, in memory if one of its names is on the CPU, under all of its names. Buffers that
    are not part of state dicts, and weights without values, are skipped.

    Args:
        tensors: The tensors of the model, of any shape and device.
        device_map: As for `dispatch_model`.
        state_dict: Stored weights in memory, as for `dispatch_model`.
        folder: The ``offload_dir`` of `dispatch_model`.
        index: The ``offload_index`` of `dispatch_model`.
        offloaded_devices: Values in the map that mean offloading: ``"disk"``, and ``"cpu"`` unless that is the main
            device. Tied weights on the CPU are always stored.

    Raises:
        ConfigError: If weights go to disk and there is no folder for them.
    """
    state: dict[str, torch.Tensor] = {}
    for_disk: dict[str, torch.Tensor] = {}
    groups = [sorted(named.names) for named in tensors]
    for named, names in zip(tensors, groups, strict=True):
        devices = {name: str(device_of(name, device_map)) for name in names}
        if state_dict is not None:
            stored = [name for name in names if name in state_dict]
        elif named.tensor.is_meta or not named.is_persistent:
            stored = []
        else:
            wanted = {*offloaded_devices, "cpu"} if len(names) > 1 else offloaded_devices
            stored = [name for name in names if devices[name] in wanted]
        if stored:
            value = in_memory(named.tensor) if state_dict is None else state_dict[stored[0]]
            on_disk = [name for name in stored if devices[name] == "disk"]
            if on_disk and not any(devices[name] == "cpu" for name in stored):
                for_disk[on_disk[0]] = value
            else:
                state.update(dict.fromkeys(names, value))
    entries = [name for name, device in device_map.items() if str(device) == "disk"]
    if entries and index is None:
        if folder is not None:
            save_offload_index(write_weights(for_disk, folder) if for_disk else {}, folder)
            index = read_offload_index(folder) if Path(folder, INDEX_NAME).is_file() else None
        elif for_disk and state_dict is None:
            raise ConfigError(
                f"`device_map` puts {', '.join(f'`{name}`' for name in entries[:5])} on disk, but there is no folder "
                "for it. Pass `offload_dir`, or the `offload_index` of weights that are stored already."
            )
    index = dict(index or {})
    for names in groups:
        first = next((name for known in (state, for_disk, index) for name in names if name in known), None)
        if first in for_disk and first not in index:
            state.update(dict.fromkeys(names, for_disk[first]))
        elif first in index and first not in state and len(names) > 1:
            entry = {"weight_name": first, **index[first]}
            index.update(dict.fromkeys(names, entry))
    return OffloadedWeightsLoader(state, folder if entries else None, index)


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor of any shape on the CPU, without a copy if they are there already."""
    values = tensor.detach().as_subclass(torch.Tensor).to("cpu")
    if values.is_inference():
        with torch.inference_mode(False):
            values = values.clone()  # outside of inference mode, writing to an inference tensor raises
    return values


def offload_state_dict(save_dir: str | os.PathLike[str], state_dict: Mapping[str, torch.Tensor]) -> None:
    """Write each tensor of a state dict, of any shape and device, to a raw file ``NAME.dat``, and update the index.

    Raises:
        CheckpointError: If a tensor is on the meta device, or its name cannot be a file name.
    """
    Path(save_dir).mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    for name, tensor in state_dict.items():
        offload_weight(tensor, name, save_dir, index)
    save_offload_index(index, save_dir)


def write_weights(
    weights: Mapping[str, torch.Tensor | DeferredTensor], folder: str | os.PathLike[str]
) -> dict[str, Any]:
    """Write weights of any shape and device to a new safetensors file, and return their entries for its index.

    File names are random and never reused: models that run from earlier files keep their values.

    Raises:
        CheckpointError: If a weight is on the meta device, or has a dtype that safetensors lacks.
    """
    for name, weight in weights.items():
        if isinstance(weight, torch.Tensor):
            _check_values(name, weight)
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder).resolve() / f"offloaded-{secrets.token_hex(8)}.safetensors"
    with path.open("xb") as file:
        write_safetensors(file, weights, metadata={"format": "pt"})
    return {
        name: {"safetensors_file": str(path), "weight_name": name, **_dtype_and_shape(weight)}
        for name, weight in weights.items()
    }


def _check_values(name: str, weight: torch.Tensor) -> None:
    if weight.is_meta:
        raise CheckpointError(
            f"`{name}` cannot be offloaded: on the meta device it has no values. Load the weights first, "
            "for example with `load_checkpoint_in_model`."
        )


def _dtype_and_shape(weight: torch.Tensor | DeferredTensor) -> dict[str, Any]:
    return {"dtype": str(weight.dtype).removeprefix("torch."), "shape": list(weight.shape)}


def offload_weight(
    weight: torch.Tensor,
    weight_name: str,
    offload_folder: str | os.PathLike[str],
    index: MutableMapping[str, Any] | None = None,
) -> MutableMapping[str, Any] | None:
    """Write one weight, of any shape and device, to a raw file; add it to ``index``, and return ``index``.

    Raises:
        CheckpointError: If the weight is on the meta device, or its name cannot be a file name.
    """
    _check_values(weight_name, weight)
    dense = weight.detach().cpu().contiguous()
    path = _weight_file(Path(offload_folder), weight_name)
    raw = (
        dense.reshape(-1).view(torch.uint8)
        if dense.numel()
        else torch.empty(0, dtype=torch.uint8, device="cpu")
    )
    _write(path, raw.numpy().data)
    if index is not None:
        index[weight_name] = _dtype_and_shape(dense)
    return index


def load_offloaded_weight(
    weight_file: str | os.PathLike[str], weight_info: Mapping[str, Any]
) -> torch.Tensor:
    """Return a weight that `offload_weight` wrote, on the CPU: mapped from its file, or read if it is small.

    Args:
        weight_file: The file.
        weight_info: Its entry in the index, with ``dtype`` and ``shape``.

    Raises:
        CheckpointError: If the file is missing or shorter than its entry requires, or the entry is invalid.
    """
    path = Path(weight_file)
    try:
        like = torch.empty(weight_info["shape"], dtype=as_torch_dtype(weight_info["dtype"]), device="meta")
    except DAMAGE as error:
        raise _invalid_entry(path.stem, weight_info) from error
    shape, dtype, num_bytes = tuple(like.shape), like.dtype, like.nbytes
    if not path.is_file() or path.stat().st_size < num_bytes:
        raise CheckpointError(
            f"The offloaded weight `{path}` is missing or truncated. Offload the model again."
        )
    if num_bytes <= _LARGEST_READ:
        raw = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        with path.open("rb") as file:
            file.readinto(raw.numpy().data)
        return raw.view(dtype).reshape(shape)
    return MappedFile(path).tensor(ByteRange(dtype, shape, 0, num_bytes))


def save_offload_index(index: Mapping[str, Any], offload_folder: str | os.PathLike[str]) -> None:
    """Add ``index`` to the ``index.json`` of a folder; nothing is written if it is empty.

    Files of `write_weights` in the folder that no entry refers to are removed.
    """
    if not index:
        return
    path = Path(offload_folder, INDEX_NAME)
    merged = {**(read_offload_index(offload_folder) if path.is_file() else {}), **index}
    _write(path, (json.dumps(merged, indent=2) + "\n").encode())
    used = {
        Path(str(entry.get("safetensors_file"))).name for entry in merged.values() if isinstance(entry, dict)
    }
    for file in Path(offload_folder).iterdir():
        if _OFFLOADED.fullmatch(file.name) and file.name not in used:
            with suppress(PermissionError):  # Windows removes no file that a model has mapped
                file.unlink()


def _write(path: Path, content: bytes | memoryview) -> None:
    """Replace a file by a rename: models that map the previous one keep their values, and links are not followed."""
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
        raise CheckpointError(f"`{offload_folder}` has no offloaded weights: `{INDEX_NAME}` is missing.")
    index = read_json(path)
    if not isinstance(index, dict):
        raise CheckpointError(f"The index `{path}` must be a JSON object with one entry per weight.")
    return index


def _invalid_entry(name: str, entry: object) -> CheckpointError:
    return CheckpointError(
        f"The offload index has an invalid entry for `{name}`: {entry!r:.200}. Offload the model again."
    )


def _weight_file(folder: Path, name: str) -> Path:
    """Return the file of a weight; raise for names that point outside the folder."""
    if not is_plain_name(f"{name}.dat") or "/" in str(name):
        raise CheckpointError(f"`{name}` cannot be the name of a file inside `{folder}`. Rename the weight.")
    return folder / f"{name}.dat"
