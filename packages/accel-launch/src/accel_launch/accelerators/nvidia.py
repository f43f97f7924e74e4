"""NVIDIA's GPUs: asked of NVML where its small package ``nvidia-ml-py`` is installed, else of the driver's files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from accel_launch.accelerators.choosing import chosen, ordinals
from accel_launch.accelerators.reading import entries, fields_of, is_built_for, is_installed

# One of them is there wherever a driver is; the last under Windows' Linux.
_TRACES = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
_TRACES_OF_WSL = ("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU; ``instances`` are the unique names of the parts that MIG has cut it into, empty where nobody knows."""

    uuid: str = ""
    instances: tuple[str, ...] = ()
    is_cut: bool = False


def load_nvml() -> Any | None:
    """Return the module of NVML, None where its package is not installed."""
    return import_module("pynvml") if is_installed("pynvml") else None


class Nvidia:
    """``CUDA_VISIBLE_DEVICES``: numbers, ``GPU-…`` and ``MIG-…``."""

    name: ClassVar[str] = "nvidia"
    variable: ClassVar[str] = "CUDA_VISIBLE_DEVICES"
    several: ClassVar[str] = "MULTI_GPU"

    def __init__(self, load: Callable[[], Any | None] = load_nvml) -> None:
        self._load = load

    def is_usable(self) -> bool:
        return is_built_for("cuda")

    def visible(self, environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
        gpus = self._present(root)
        selection = environ.get(self.variable)
        if not gpus:
            return ()
        if selection is not None and selection.strip().startswith("MIG-"):
            return _visible_instance(selection, gpus)
        names = ordinals(len(gpus))
        known = [gpu.uuid for gpu in gpus]
        if selection is not None and selection.strip().startswith("GPU-") and not all(known):
            # Nobody tells the names of these GPUs: believe the variable.
            return tuple(part.strip() for part in selection.split(",") if part.strip())
        places = chosen(selection, names, known)
        # CUDA shows a process one instance of MIG at most, and no whole GPU beside it.
        cut = [place for place in places if gpus[place].is_cut]
        return tuple(names[place] for place in cut[:1] or places)

    def _present(self, root: Path) -> list[Gpu]:
        if not any((root / trace).exists() for trace in _TRACES):
            return []
        nvml = self._load()
        told = None if nvml is None else _told_by(nvml)
        return _from_files(root) if told is None else told


def _visible_instance(selection: str, gpus: list[Gpu]) -> tuple[str, ...]:
    first = selection.split(",")[0].strip()
    known = [instance for gpu in gpus for instance in gpu.instances]
    is_there = not known or any(instance.startswith(first) for instance in known)
    # The older names, `MIG-GPU-…/1/0`, cannot be compared.
    return (first,) if is_there or first.startswith("MIG-GPU-") else ()


def _told_by(nvml: Any) -> list[Gpu] | None:
    """Return what NVML says, None if it has no driver to ask."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        handles = (nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount()))
        return [_gpu(nvml, handle) for handle in handles]
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    uuid = str(nvml.nvmlDeviceGetUUID(handle))
    try:
        is_cut = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError:  # a GPU that cannot be cut
        return Gpu(uuid)
    instances = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_cut else 0):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError:  # fewer than there could be
            break
        instances.append(str(nvml.nvmlDeviceGetUUID(instance)))
    return Gpu(uuid, tuple(instances), is_cut)


def _from_files(root: Path) -> list[Gpu]:
    driver = root / "proc" / "driver" / "nvidia"
    folders = sorted((driver / "gpus").glob("*/information"))
    told = [fields_of(path, ":") for path in folders]
    present = [fields for fields in told if fields.get("GPU Excluded", "No") == "No"]
    devices = [path for path in entries(root / "dev", r"nvidia(\d+)") if os.access(path, os.R_OK | os.W_OK)]
    if not devices and all((root / trace).exists() for trace in _TRACES_OF_WSL):
        return [Gpu()]  # Windows' Linux has one file for all; with NVML they are counted
    if not told:
        return [Gpu() for _ in devices]
    # A container sees all GPUs of its host in `/proc`, but has the device files of its own only.
    own = {path.name.removeprefix("nvidia") for path in devices}
    present = [fields for fields in present if fields.get("Device Minor") in own]
    return [
        Gpu(fields.get("GPU UUID", ""), is_cut=_is_cut(driver, fields.get("Device Minor", "")))
        for fields in present
    ]


def _is_cut(driver: Path, minor: str) -> bool:
    return any((driver / "capabilities" / f"gpu{minor}" / "mig").glob("gi*/ci*"))
