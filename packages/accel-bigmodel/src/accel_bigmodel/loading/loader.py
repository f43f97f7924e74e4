"""Load the files of a checkpoint into a model: each tensor goes to its device, or stays on disk."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel_bigmodel.loading.matching import match
from accel_bigmodel.loading.reads import ParallelReads, can_read_to
from accel_bigmodel.offload.store import save_offload_index, write_weights
from accel_bigmodel.planning.device_maps import DeviceMap, check_device_map, device_of
from accel_bigmodel.tensors import as_parameter_like, assign, check_aliases
from accel_checkpoint.formats.weight_files import (
    ByteRange,
    CheckpointFile,
    MappedFile,
    SafetensorsLayout,
    checkpoint_files,
    read_layout,
    read_weights,
)
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.tensors import DeferredTensor
from accel_ops.named_tensors import NamedTensor, named_tensors, walk_modules
from accel_state.errors import CheckpointError, ConfigError

_CPU = torch.device("cpu")
_EXTRA_STATE = "_extra_state"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The devices and dtypes of loaded tensors; the fields are arguments of `load_checkpoint_in_model`."""

    device_map: DeviceMap | None = None
    dtype: torch.dtype | None = None
    keep_in_fp32_modules: tuple[str, ...] = ()
    folder: Path | None = None
    offload_buffers: bool = False
    may_map: bool = False

    def dtype_of(self, name: str, tensor: torch.Tensor) -> torch.dtype:
        """Return the dtype of a tensor (of any shape and device) in the model."""
        if self.dtype is None or not tensor.is_floating_point():
            return tensor.dtype
        kept = any(f".{module}." in f".{name}" for module in self.keep_in_fp32_modules)
        return torch.float32 if kept else self.dtype


def load_weights(
    model: nn.Module,
    checkpoint: str | os.PathLike[str],
    options: LoadOptions,
    *,
    strict: bool,
    ignored: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Load a checkpoint in this process, and return the index of the weights that stay on disk.

    Names in the checkpoint that end with one of ``ignored`` are skipped.
    """
    if options.device_map is not None:
        check_device_map(model, options.device_map)
    with _gc_paused():
        loader = CheckpointLoader(model, checkpoint, options)
        loader.check(strict=strict, ignored=ignored)
        loader.load()
    return loader.offload_index


def holds_dtensors(model: nn.Module) -> bool:
    """Whether parameters of ``model`` are sharded over processes."""
    if not dist.is_available() or not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pause the garbage collector.

    Allocating many thousand tensors would trigger collections over all objects of the process, and loading creates no
    reference cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CheckpointLoader:
    """Loads one checkpoint into a model.

    Args:
        model: The model. A parameter with values stays the same object.
        checkpoint: A weight file, an index (``.json``), or a folder with one of them.
        options: Devices and dtypes.
    """

    def __init__(self, model: nn.Module, checkpoint: Any, options: LoadOptions) -> None:
        self.offload_index: dict[str, Any] = {}
        """The locations of the weights that stay on disk."""
        self._model, self._checkpoint, self._options = model, checkpoint, options
        self._persistent = [named for named in named_tensors(model) if named.is_persistent]
        self._tensors = {name: named for named in self._persistent for name in named.names}
        self._extras = _extra_states(model)
        self._files = checkpoint_files(checkpoint)
        self._saved = saved_files(self._files[0].path.parent)
        self._compared = set[Path]()
        self._layouts = {f.path: read_layout(f.path) for f in self._files if f.path.suffix == ".safetensors"}
        self._devices = {
            # `torch.device("cuda")` has no index, and would never equal the device of a tensor, `cuda:0`.
            n: "disk" if d == "disk" else torch.empty(0, device=d).device
            for n, d in (options.device_map or {}).items()
        }
        self._reads = ParallelReads()
        self._fresh: list[tuple[NamedTensor, torch.Tensor]] = []
        self._duplicates: list[tuple[str, NamedTensor, torch.Tensor]] = []
        self._first_names: dict[int, str] = {}
        self._for_folder: dict[str, torch.Tensor | DeferredTensor] = {}

    def check(self, *, strict: bool, ignored: tuple[str, ...] = ()) -> None:
        """Compare names and shapes; names that end with one of ``ignored`` are skipped.

        Raises:
            CheckpointError: If the checkpoint does not fit the model.
        """
        shapes = {
            name: shape
            for file in self._files
            for name, shape in _shapes_in(file, self._layouts.get(file.path)).items()
            if not name.endswith(ignored)
        }
        wanted = {
            **{n: named.tensor.shape for n, named in self._tensors.items()},
            **dict.fromkeys(self._extras),
        }
        if shapes != wanted:
            ties = [named.names for named in self._persistent if len(named.names) > 1]
            match(wanted, shapes, ties=ties).raise_or_warn(self._checkpoint, strict=strict)

    @torch.no_grad()
    def load(self) -> None:
        """Load all tensors.

        Raises:
            CheckpointError: If a file ends too early, a tied weight has different values under its names, or a file
                differs from its digest in the checkpoint's manifest.
            ConfigError: If weights go to disk and there is no folder for them.
        """
        with self._saved:
            for file in self._files:
                if file.path in self._layouts:
                    self._from_safetensors(file, self._layouts[file.path])
                else:
                    self._from_pickled(file)
            self._reads.run()
        for named, fresh in self._fresh:
            self._set(named, fresh)
        self._check_duplicates()
        replaced = {id(n.tensor) for n in self._persistent if n.tensor.is_meta and _now(n) is not n.tensor}
        check_aliases(self._model, replaced)
        folder = self._options.folder
        if folder is not None and self.offload_index:
            folder.mkdir(parents=True, exist_ok=True)
            save_offload_index(self.offload_index, folder)

    def _from_safetensors(self, file: CheckpointFile, layout: SafetensorsLayout) -> None:
        mapped = MappedFile(file.path) if layout.ranges else None
        for name in file.listed(layout.ranges, layout.second_names):
            assert mapped is not None
            if name in self._extras:
                self._compare(file.path)
                self._extras[name].set_extra_state(mapped.tensor(layout.ranges[name]).clone())  # it is mapped
            named = self._tensors.get(name)
            if named is None:
                continue
            place, dtype, device = (
                layout.ranges[name],
                self._options.dtype_of(name, named.tensor),
                self._device(named),
            )
            if self._is_duplicate(name, named):
                if name not in layout.second_names:
                    self._duplicates.append((name, named, mapped.tensor(place)))
            elif device is None and (place.dtype == dtype or self._options.folder is None):
                self._leave_in_file(name, named, dtype, layout)
            elif device is None or self._stays_mapped(place.dtype, dtype, device) or not can_read_to(device):
                self._from_value(name, named, mapped.tensor(place), file.path)
            else:
                self._read(named, file.path, place, device, dtype)
        self._flush_to_folder()

    def _from_pickled(self, file: CheckpointFile) -> None:
        self._compare(file.path)
        content = read_weights(file.path)
        for name in file.listed(content):
            if name in self._extras:
                self._extras[name].set_extra_state(content[name])
            elif name in self._tensors:
                named, value = self._tensors[name], content[name]
                if self._is_duplicate(name, named):
                    self._duplicates.append((name, named, value))
                else:
                    self._from_value(name, named, value, file.path)
        self._flush_to_folder()

    def _read(
        self, named: NamedTensor, path: Path, place: ByteRange, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Queue a tensor for the parallel reads, into its current memory if possible."""
        self._compare(path)
        tensor = named.tensor
        is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.is_contiguous()
        is_plain = is_plain and not (tensor.is_conj() or tensor.is_neg())  # their memory has other values
        if is_plain and _is_on(tensor, device, dtype):
            # The reads bypass autograd: a backward pass that saved this tensor must raise, not use the new values.
            torch.autograd.graph.increment_version(tensor)
        else:
            tensor = torch.empty(place.shape, dtype=dtype, device=device)
            self._fresh.append((named, tensor))
        self._reads.add(tensor, path, place)

    def _from_value(self, name: str, named: NamedTensor, value: torch.Tensor, path: Path) -> None:
        """Load a tensor whose values are in memory or mapped."""
        self._compare(path)
        device, dtype = self._device(named), self._options.dtype_of(name, named.tensor)
        if device is None:
            self._write_to_folder(name, named, value, dtype, path)
        elif self._stays_mapped(value.dtype, dtype, device):
            self._replace(named, value)
        elif _is_on(named.tensor, device, dtype):
            named.tensor.copy_(value)
        else:
            # Always copy: `value` may be a mapping of the file.
            self._replace(named, value.to(device=device, dtype=dtype, copy=True))

    def _compare(self, path: Path) -> None:
        """Compare a file with its digest, if it has one. Files whose weights all stay on disk are not read for that."""
        if path not in self._compared:
            self._compared.add(path)
            self._saved.path(path.name)

    def _stays_mapped(self, stored: torch.dtype, dtype: torch.dtype, device: torch.device) -> bool:
        return self._options.may_map and device.type == "cpu" and stored == dtype

    def _set(self, named: NamedTensor, fresh: torch.Tensor) -> None:
        if _is_on(named.tensor, fresh.device, fresh.dtype):
            named.tensor.copy_(fresh)
        else:
            self._replace(named, fresh)

    def _replace(self, named: NamedTensor, fresh: torch.Tensor) -> None:
        """Replace a tensor under all its names; a parameter with values takes over the memory of ``fresh``.

        It stays the same object, because an optimizer may refer to it.
        """
        old = named.tensor
        if type(old) is nn.Parameter and not old.is_meta and not fresh.is_meta:
            if fresh.is_floating_point() == old.is_floating_point():
                old.data = fresh
                return
        fresh = as_parameter_like(old, fresh) if named.is_parameter else fresh
        for module, name in named.places:
            assign(module, name, fresh)

    def _device(self, named: NamedTensor) -> torch.device | None:
        """Return the device of a tensor, ``None`` for the disk; tied weights prefer a device over the disk."""
        if self._options.device_map is None:
            return _CPU if named.tensor.is_meta else named.tensor.device
        device = None
        for name in named.names:
            device = device_of(name, self._devices)
            if isinstance(device, torch.device):
                return device
        return _CPU if device is None or not (named.is_parameter or self._options.offload_buffers) else None

    def _leave_on_disk(self, named: NamedTensor, dtype: torch.dtype) -> None:
        if not named.tensor.is_meta or named.tensor.dtype != dtype:
            self._replace(named, torch.empty_like(named.tensor, dtype=dtype, device="meta"))

    def _leave_in_file(
        self, name: str, named: NamedTensor, dtype: torch.dtype, layout: SafetensorsLayout
    ) -> None:
        self._leave_on_disk(named, dtype)
        self.offload_index[name] = {
            "safetensors_file": str(layout.path.resolve()),
            "weight_name": layout.second_names.get(name, name),
            "dtype": str(dtype).removeprefix("torch."),
            "shape": list(layout.ranges[name].shape),
        }

    def _write_to_folder(
        self, name: str, named: NamedTensor, value: torch.Tensor, dtype: torch.dtype, path: Path
    ) -> None:
        if self._options.folder is None:
            raise ConfigError(
                f"`device_map` leaves `{name}` on disk, but `{path}` cannot be read tensor by tensor. Pass an "
                "`offload_folder` to write it to, or convert the checkpoint to safetensors."
            )
        self._for_folder[name] = DeferredTensor(dtype, value.shape, lambda: value.to(dtype))
        self._leave_on_disk(named, dtype)

    def _flush_to_folder(self) -> None:
        """Write those weights of one checkpoint file to the offload folder that must stay on disk, one at a time."""
        if self._for_folder:
            assert self._options.folder is not None
            self.offload_index.update(write_weights(self._for_folder, self._options.folder))
            self._for_folder.clear()

    def _is_duplicate(self, name: str, named: NamedTensor) -> bool:
        """Whether the tied weight has already been loaded under another name."""
        return len(named.names) > 1 and self._first_names.setdefault(id(named), name) != name

    def _check_duplicates(self) -> None:
        """Check that tied weights have the same values under their other names."""
        for name, named, value in self._duplicates:
            now = _now(named).detach()
            # On the CPU: the device may be full now, without room for a second embedding.
            if not now.is_meta and not torch.equal(now.to(_CPU), value.to(_CPU, now.dtype)):
                raise CheckpointError(
                    f"`{self._first_names[id(named)]}` and `{name}` are one tied weight in the model, but differ in "
                    "the checkpoint. Untie them in the model, or remove one from the checkpoint."
                )


def _now(named: NamedTensor) -> torch.Tensor:
    """Return the current tensor in the model."""
    tensor: torch.Tensor = getattr(*named.places[0])
    return tensor


def _is_on(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether values for this device and dtype can be written into the tensor in place."""
    is_expanded = any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return not (tensor.is_meta or is_expanded) and tensor.device == device and tensor.dtype == dtype


def _shapes_in(file: CheckpointFile, layout: SafetensorsLayout | None) -> dict[str, torch.Size | None]:
    """Return the shapes by name of a file's relevant entries, ``None`` for values that are not tensors."""
    if layout is not None:
        names = file.listed(layout.ranges, layout.second_names)
        return {name: torch.Size(layout.ranges[name].shape) for name in names}
    content = read_weights(file.path)
    values = {name: content[name] for name in file.listed(content)}
    return {name: getattr(value, "shape", None) for name, value in values.items()}


def _extra_states(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with extra state, by its name in the state dict."""
    base = nn.Module.get_extra_state
    return {
        f"{path}.{_EXTRA_STATE}" if path else _EXTRA_STATE: module
        for path, module in walk_modules(model)
        if type(module).get_extra_state is not base
    }
