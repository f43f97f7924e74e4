"""Fill a model from files: for each tensor, decide where it goes and how, then do that."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel_bigmodel.loading.direct_reads import DirectReads
from accel_bigmodel.loading.targets import Target
from accel_bigmodel.offload.folder import offload_weight, save_offload_index
from accel_bigmodel.planning.device_maps import DeviceLookup, DeviceMap
from accel_bigmodel.tensors.aliases import repair_aliases
from accel_checkpoint.formats.safetensor_ranges import ByteRange, MappedFile, SafetensorsLayout
from accel_checkpoint.formats.weight_files import CheckpointFile, opener
from accel_state.errors import CheckpointError, ConfigError

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Destination:
    """Where tensors go, and as what type of number; the fields are arguments of `load_checkpoint_in_model`."""

    device_map: DeviceMap | None = None
    dtype: torch.dtype | None = None
    keep_in_fp32_modules: tuple[str, ...] = ()
    folder: Path | None = None
    offload_buffers: bool = False
    may_map: bool = False

    def dtype_of(self, name: str, tensor: torch.Tensor) -> torch.dtype:
        """Return what a tensor is stored as in the model."""
        if self.dtype is None or not tensor.is_floating_point():
            return tensor.dtype
        kept = any(f".{module}." in f".{name}" for module in self.keep_in_fp32_modules)
        return torch.float32 if kept else self.dtype


class Way(Enum):
    """How the values of one tensor get from a file into the model."""

    LEAVE_IN_FILE = auto()
    WRITE_TO_FOLDER = auto()
    MAP = auto()
    READ_IN_PLACE = auto()
    READ = auto()
    CONVERT = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one tensor.

    Args:
        way: How.
        device: Where it goes; ``None`` for the disk.
        dtype: What it is in the model.
    """

    way: Way
    device: torch.device | None
    dtype: torch.dtype


def decide(
    old: torch.Tensor,
    stored: torch.dtype,
    device: torch.device | None,
    to: Destination,
    name: str,
    *,
    is_raw: bool,
) -> Decision:
    """Return what becomes of a tensor of a file.

    Args:
        old: What is in the model now.
        stored: The dtype in the file.
        device: Where it goes, ``None`` for the disk.
        to: What the caller wants.
        name: In the model.
        is_raw: The file holds the plain bytes, so that they can be read straight into memory, or stay there.
    """
    dtype = to.dtype_of(name, old)
    if device is None:
        stays = is_raw and (stored == dtype or to.folder is None)
        return Decision(Way.LEAVE_IN_FILE if stays else Way.WRITE_TO_FOLDER, None, dtype)
    if stored != dtype or device.type != "cpu":
        return Decision(Way.CONVERT, device, dtype)
    if to.may_map:
        return Decision(Way.MAP, device, dtype)
    if not is_raw:
        return Decision(Way.CONVERT, device, dtype)
    is_plain = type(old) in (torch.Tensor, nn.Parameter) and old.is_cpu and old.is_contiguous()
    return Decision(Way.READ_IN_PLACE if is_plain and old.dtype == dtype else Way.READ, device, dtype)


class Filling:
    """One load: fills the places of a model from one file after the other."""

    def __init__(
        self, model: nn.Module, places: dict[str, Target], extras: dict[str, nn.Module], to: Destination
    ) -> None:
        self.offload_index: dict[str, Any] = {}
        self._model = model
        self._places, self._extras, self._to = places, extras, to
        self._first_names: dict[int, str] = {}
        self._devices = None if to.device_map is None else DeviceLookup(_resolved(to.device_map))

    def fill_from(self, file: CheckpointFile, layout: SafetensorsLayout | None) -> None:
        """Fill all places that ``file`` has values for; ``layout`` is that of a safetensors file."""
        if layout is not None:
            self._from_safetensors(file, layout)
            return
        with opener(file.path)(file.path) as reader:
            for name in names_in(file, list(reader.keys()), set()):
                if name in self._extras:
                    self._extras[name].set_extra_state(reader.read(name))
                elif name in self._places:
                    self._from_value(name, reader.read(name), file)

    def finish(self) -> None:
        """Note in the offload folder where the weights on disk are."""
        replaced = {
            id(target.tensor): target.fresh
            for target in self._places.values()
            if target.fresh is not None and target.tensor.is_meta
        }
        repair_aliases(self._model, replaced)
        if self._to.folder is not None and self.offload_index:
            self._to.folder.mkdir(parents=True, exist_ok=True)
            save_offload_index(self.offload_index, self._to.folder)

    def _device(self, target: Target) -> torch.device | None:
        """Return where a tensor goes, ``None`` for the disk; one with several names to where it is needed."""
        tensor = target.tensor
        if self._devices is None:
            return _CPU if tensor.is_meta else tensor.device
        found = None
        for name in target.names:
            found = self._devices[name]
            if isinstance(found, torch.device):
                return found
        is_buffer = not isinstance(tensor, nn.Parameter)
        return _CPU if found is None or (is_buffer and not self._to.offload_buffers) else None

    def _from_safetensors(self, file: CheckpointFile, layout: SafetensorsLayout) -> None:
        mapped = MappedFile(file.path) if layout.ranges else None
        reads = DirectReads(file.path)
        fresh: list[tuple[Target, torch.Tensor]] = []
        duplicates: list[tuple[str, Target, ByteRange]] = []
        for name in names_in(file, [*layout.ranges, *layout.second_names], set(layout.second_names)):
            target = self._places.get(name)
            if target is None:
                continue
            place = layout[name]
            if self._is_second(name, target):
                if name not in layout.second_names:
                    duplicates.append((name, target, place))
                continue
            decision = decide(target.tensor, place.dtype, self._device(target), self._to, name, is_raw=True)
            if decision.way is Way.LEAVE_IN_FILE:
                self._leave_in_file(name, target, decision.dtype, layout)
            elif decision.way in (Way.READ_IN_PLACE, Way.READ):
                if decision.way is Way.READ_IN_PLACE:
                    tensor = target.memory()
                else:
                    tensor = torch.empty(place.shape, dtype=decision.dtype)
                    fresh.append((target, tensor))
                reads.add(tensor, place.start, place.num_bytes)
            else:
                assert mapped is not None
                self._put(name, target, mapped.tensor(place), decision, file.path)
        reads.run()
        for target, tensor in fresh:
            target.replace(tensor)
        for name, target, place in duplicates:
            assert mapped is not None
            self._check_duplicate(name, target, mapped.tensor(place))

    def _from_value(self, name: str, value: Any, file: CheckpointFile) -> None:
        target = self._places[name]
        if self._is_second(name, target):
            self._check_duplicate(name, target, value)
            return
        decision = decide(target.tensor, value.dtype, self._device(target), self._to, name, is_raw=False)
        self._put(name, target, value, decision, file.path)

    def _is_second(self, name: str, target: Target) -> bool:
        """Whether tied weights that a target holds came under another name before."""
        return len(target.names) > 1 and self._first_names.setdefault(id(target), name) != name

    def _put(self, name: str, target: Target, value: torch.Tensor, decision: Decision, path: Path) -> None:
        if decision.way is Way.WRITE_TO_FOLDER:
            self._write_to_folder(name, target, value.to(decision.dtype), path)
        elif decision.way is Way.MAP:
            target.replace(value)
        else:
            assert decision.device is not None
            target.fill(value, device=decision.device, dtype=decision.dtype)

    def _leave_in_file(
        self, name: str, target: Target, dtype: torch.dtype, layout: SafetensorsLayout
    ) -> None:
        target.empty(dtype)
        self.offload_index[name] = {
            "safetensors_file": str(layout.path.resolve()),
            "weight_name": layout.second_names.get(name, name),
            "dtype": str(dtype).removeprefix("torch."),
            "shape": list(layout[name].shape),
        }

    def _write_to_folder(self, name: str, target: Target, value: torch.Tensor, path: Path) -> None:
        if self._to.folder is None:
            raise ConfigError(
                f"`device_map` leaves `{name}` on disk, but it cannot be read from `{path}` piece by piece. Give "
                "`offload_folder`, to which it is written, or convert the checkpoint to safetensors."
            )
        self._to.folder.mkdir(parents=True, exist_ok=True)
        offload_weight(value, name, self._to.folder, self.offload_index)
        target.empty(value.dtype)

    def _check_duplicate(self, name: str, target: Target, value: torch.Tensor) -> None:
        """Check that a second name of tied weights comes with the same values."""
        now = target.current()
        if not now.is_meta and not torch.equal(now, value.to(now)):
            raise CheckpointError(
                f"`{self._first_names[id(target)]}` and `{name}` are one tied weight in the model, but differ in the "
                "checkpoint. Untie them in the model, or remove one from the checkpoint."
            )


def _resolved(device_map: DeviceMap) -> dict[str, str | torch.device]:
    return {name: "disk" if d == "disk" else torch.device(d) for name, d in device_map.items()}


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep Python from searching for garbage meanwhile.

    Each of many thousand new tensors would count towards a search through all objects of the process; there is no
    garbage in cycles here.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def shapes_in(file: CheckpointFile, layout: SafetensorsLayout | None) -> dict[str, torch.Size | None]:
    """Return the names in a file that count, with their shapes; ``None`` for what is no tensor."""
    if layout is not None:
        names = names_in(file, [*layout.ranges, *layout.second_names], set(layout.second_names))
        return {name: torch.Size(layout[name].shape) for name in names}
    with opener(file.path)(file.path) as reader:
        return {name: reader.shape(name) for name in names_in(file, list(reader.keys()), set())}


def names_in(file: CheckpointFile, names: list[str], second_names: set[str]) -> list[str]:
    """Return the names in a file that count, which are all it holds or those that its index lists."""
    if file.names is None:
        return names
    lacking = sorted(file.names.difference(names))
    if lacking:
        raise CheckpointError(
            f"`{file.path}` lacks {', '.join(lacking[:5])}, promised by its index. "
            "Files of two different saves may have been mixed."
        )
    return [name for name in names if name in file.names or name in second_names]
