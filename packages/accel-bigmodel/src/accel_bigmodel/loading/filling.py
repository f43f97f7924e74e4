"""Fill a model from files: decide for each tensor where it goes and how, then load it."""

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

from accel_bigmodel.offload.store import save_offload_index, write_weights
from accel_bigmodel.planning.device_maps import DeviceLookup, DeviceMap
from accel_bigmodel.tensors import as_parameter_like
from accel_bigmodel.ties import check_aliases
from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.formats.safetensor_ranges import ByteRange, MappedFile, SafetensorsLayout
from accel_checkpoint.formats.weight_files import CheckpointFile, opener
from accel_checkpoint.reading.direct_reads import DirectReads
from accel_ops.named_tensors import named_tensors, walk_modules
from accel_state.errors import CheckpointError, ConfigError

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Destination:
    """The devices and dtypes of loaded tensors; the fields are arguments of `load_checkpoint_in_model`."""

    device_map: DeviceMap | None = None
    dtype: torch.dtype | None = None
    keep_in_fp32_modules: tuple[str, ...] = ()
    folder: Path | None = None
    offload_buffers: bool = False
    may_map: bool = False

    def dtype_of(self, name: str, tensor: torch.Tensor) -> torch.dtype:
        """Return the dtype of a tensor in the model."""
        if self.dtype is None or not tensor.is_floating_point():
            return tensor.dtype
        kept = any(f".{module}." in f".{name}" for module in self.keep_in_fp32_modules)
        return torch.float32 if kept else self.dtype


class LoadMethod(Enum):
    """How the values of one tensor get from a file into the model."""

    LEAVE_IN_FILE = auto()
    WRITE_TO_FOLDER = auto()
    MAP = auto()
    READ_IN_PLACE = auto()
    READ = auto()
    CONVERT = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """How one tensor is loaded.

    Args:
        method: The method.
        device: Its device; ``None`` for the disk.
        dtype: Its dtype in the model.
    """

    method: LoadMethod
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
    """Return how to load a tensor from a file.

    Args:
        old: The tensor in the model now.
        stored: Its dtype in the file.
        device: The device to load it to, ``None`` for the disk.
        to: What the caller wants.
        name: Its name in the model.
        is_raw: The file holds plain bytes, which can be read directly into memory or stay in the file.
    """
    dtype = to.dtype_of(name, old)
    if device is None:
        stays = is_raw and (stored == dtype or to.folder is None)
        return Decision(LoadMethod.LEAVE_IN_FILE if stays else LoadMethod.WRITE_TO_FOLDER, None, dtype)
    if stored != dtype or device.type != "cpu":
        return Decision(LoadMethod.CONVERT, device, dtype)
    if to.may_map:
        return Decision(LoadMethod.MAP, device, dtype)
    if not is_raw:
        return Decision(LoadMethod.CONVERT, device, dtype)
    is_plain = type(old) in (torch.Tensor, nn.Parameter) and old.is_cpu and old.is_contiguous()
    return Decision(
        LoadMethod.READ_IN_PLACE if is_plain and old.dtype == dtype else LoadMethod.READ, device, dtype
    )


class Filling:
    """Fills the tensors of a model from one file after the other."""

    def __init__(
        self, model: nn.Module, places: dict[str, Target], extras: dict[str, nn.Module], to: Destination
    ) -> None:
        self.offload_index: dict[str, Any] = {}
        self._for_folder: dict[str, torch.Tensor | DeferredTensor] = {}
        self._model = model
        self._places, self._extras, self._to = places, extras, to
        self._first_names: dict[int, str] = {}
        devices = {n: "disk" if d == "disk" else torch.device(d) for n, d in (to.device_map or {}).items()}
        self._devices = None if to.device_map is None else DeviceLookup(devices)

    def fill_from(self, file: CheckpointFile, layout: SafetensorsLayout | None) -> None:
        """Fill all tensors that ``file`` has values for; ``layout`` is given for safetensors files."""
        if layout is not None:
            self._from_safetensors(file, layout)
            self._flush_to_folder()
            return
        with opener(file.path)(file.path) as reader:
            for name in names_in(file, list(reader.keys()), set()):
                if name in self._extras:
                    self._extras[name].set_extra_state(reader.read(name))
                elif name in self._places:
                    self._from_value(name, reader.read(name), file)
            self._flush_to_folder()

    def finish(self) -> None:
        """Write the places of weights on disk to the index of the offload folder."""
        targets = self._places.values()
        replaced = {id(t.tensor) for t in targets if t.fresh is not None and t.tensor.is_meta}
        check_aliases(self._model, replaced)
        if self._to.folder is not None and self.offload_index:
            self._to.folder.mkdir(parents=True, exist_ok=True)
            save_offload_index(self.offload_index, self._to.folder)

    def _device(self, target: Target) -> torch.device | None:
        """Return the device of a tensor, ``None`` for the disk; tied weights prefer a device over the disk."""
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
            if self._is_duplicate(name, target):
                if name not in layout.second_names:
                    duplicates.append((name, target, place))
                continue
            decision = decide(target.tensor, place.dtype, self._device(target), self._to, name, is_raw=True)
            if decision.method is LoadMethod.LEAVE_IN_FILE:
                self._leave_in_file(name, target, decision.dtype, layout)
            elif decision.method in (LoadMethod.READ_IN_PLACE, LoadMethod.READ):
                if decision.method is LoadMethod.READ_IN_PLACE:
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
        if self._is_duplicate(name, target):
            self._check_duplicate(name, target, value)
            return
        decision = decide(target.tensor, value.dtype, self._device(target), self._to, name, is_raw=False)
        self._put(name, target, value, decision, file.path)

    def _is_duplicate(self, name: str, target: Target) -> bool:
        """Whether the tied weight of a target has already been loaded under another name."""
        return len(target.names) > 1 and self._first_names.setdefault(id(target), name) != name

    def _put(self, name: str, target: Target, value: torch.Tensor, decision: Decision, path: Path) -> None:
        if decision.method is LoadMethod.WRITE_TO_FOLDER:
            self._write_to_folder(name, target, value, decision.dtype, path)
        elif decision.method is LoadMethod.MAP:
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

    def _write_to_folder(
        self, name: str, target: Target, value: torch.Tensor, dtype: torch.dtype, path: Path
    ) -> None:
        if self._to.folder is None:
            raise ConfigError(
                f"`device_map` leaves `{name}` on disk, but `{path}` cannot be read tensor by tensor. Give an "
                "`offload_folder` to write it to, or convert the checkpoint to safetensors."
            )
        self._for_folder[name] = DeferredTensor(dtype, value.shape, lambda: value.to(dtype))
        target.empty(dtype)

    def _flush_to_folder(self) -> None:
        """Write the weights of one file of the checkpoint that go to the offload folder, one after the other."""
        if self._for_folder:
            assert self._to.folder is not None
            self.offload_index.update(write_weights(self._for_folder, self._to.folder))
            self._for_folder.clear()

    def _check_duplicate(self, name: str, target: Target, value: torch.Tensor) -> None:
        """Check that a tied weight has the same values under its other name."""
        now = target.current()
        if not now.is_meta and not torch.equal(now, value.to(now)):
            raise CheckpointError(
                f"`{self._first_names[id(target)]}` and `{name}` are one tied weight in the model, but differ in the "
                "checkpoint. Untie them in the model, or remove one from the checkpoint."
            )


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector.

    The allocation of many thousand tensors would trigger collections over all objects of the process, and loading
    creates no reference cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def shapes_in(file: CheckpointFile, layout: SafetensorsLayout | None) -> dict[str, torch.Size | None]:
    """Return the relevant names in a file with their shapes, ``None`` for values that are not tensors."""
    if layout is not None:
        names = names_in(file, [*layout.ranges, *layout.second_names], set(layout.second_names))
        return {name: torch.Size(layout[name].shape) for name in names}
    with opener(file.path)(file.path) as reader:
        return {name: reader.shape(name) for name in names_in(file, list(reader.keys()), set())}


def names_in(file: CheckpointFile, names: list[str], second_names: set[str]) -> list[str]:
    """Return the relevant names in a file: those that its index lists, or all if there is no index."""
    if file.names is None:
        return names
    missing = sorted(file.names.difference(names))
    if missing:
        raise CheckpointError(
            f"`{file.path}` lacks {', '.join(missing[:5])}, which its index lists. "
            "Files of two different saves may have been mixed."
        )
    return [name for name in names if name in file.names or name in second_names]


EXTRA_STATE = "_extra_state"
_PLAIN_SETATTR = nn.Module.__setattr__


@dataclass(slots=True, eq=False)
class Target:
    """One tensor of a model with all its places; more than one if it is tied.

    Args:
        tensor: The tensor before loading.
        places: The modules that hold it, each with its name there.
        names: All its names in the state dict.
        fresh: The tensor that replaced it, if any.
    """

    tensor: torch.Tensor
    places: list[tuple[nn.Module, str]]
    names: list[str]
    fresh: torch.Tensor | None = None

    def fill(self, value: torch.Tensor, *, device: torch.device, dtype: torch.dtype) -> None:
        """Load ``value``, in place if device and dtype stay the same."""
        with torch.no_grad():
            if self.tensor.device == device and self.tensor.dtype == dtype and not self.tensor.is_meta:
                self.tensor.copy_(value)
                return
            # Always copy: `value` may be a read-only mapping of the file.
            fresh = value.to(device=device, dtype=dtype, copy=True)
            self.replace(fresh)

    def memory(self) -> torch.Tensor:
        """Return the tensor itself, to be written to."""
        # A backward pass that saved this tensor must notice the change.
        torch.autograd.graph.increment_version(self.tensor)
        return self.tensor

    def empty(self, dtype: torch.dtype) -> None:
        """Replace the tensor by one of ``dtype`` on the meta device."""
        if not self.tensor.is_meta or self.tensor.dtype != dtype:
            self.replace(torch.empty_like(self.tensor, dtype=dtype, device="meta"))

    def current(self) -> torch.Tensor:
        """Return the tensor that is in the model now."""
        return (self.tensor if self.fresh is None else self.fresh).detach()

    def replace(self, fresh: torch.Tensor) -> None:
        """Put ``fresh`` itself into every place.

        A parameter with values stays the same object, so that optimizers keep it, and gets the memory of ``fresh``.
        """
        is_parameter = isinstance(self.tensor, nn.Parameter)
        if type(self.tensor) is nn.Parameter and not self.tensor.is_meta and not fresh.is_meta:
            if fresh.is_floating_point() == self.tensor.is_floating_point():
                self.tensor.data = fresh
                return
        if is_parameter:
            fresh = as_parameter_like(self.tensor, fresh)
        self.fresh = fresh
        for module, name in self.places:
            if type(module).__setattr__ is _PLAIN_SETATTR:
                members: dict[str, Any] = module._parameters if is_parameter else module._buffers
                members[name] = fresh
            else:
                setattr(module, name, fresh)  # recurrent layers also keep a list of their weights


def targets(model: nn.Module) -> dict[str, Target]:
    """Return the targets by name in the model's state dict; tied names share one target."""
    by_name: dict[str, Target] = {}
    for found in named_tensors(model):
        if found.is_persistent:
            by_name.update(dict.fromkeys(found.names, Target(found.tensor, found.places, found.names)))
    return by_name


def extra_states(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with extra state, by its name in the state dict."""
    base = nn.Module.get_extra_state
    return {
        f"{path}.{EXTRA_STATE}" if path else EXTRA_STATE: module
        for path, module in walk_modules(model)
        if type(module).get_extra_state is not base
    }
