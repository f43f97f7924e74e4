"""What a process may use of this machine: its accelerators and CPU cores.

NVIDIA's and AMD's GPUs are listed by their drivers, those of other vendors counted by torch.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from accel_launch.messages import warn
from accel_state.errors import NotAvailableError

ROOT = Path("/")
# Windows' Linux has one file for all GPUs.
_TRACES_OF_WSL = ("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1")
_AMD_NODES = "sys/class/kfd/kfd/topology/nodes"
_NUMBER = re.compile(r"[+-]?\d+")
_BUILT_FOR = re.compile(r"^(cuda|hip|xpu)\b[^=]*= *(.+)$", re.MULTILINE)


class Accelerators(NamedTuple):
    """The accelerators of a process: by the names that ``variable`` has for them, which chooses among several.

    ``several`` is the `distributed_type` of a config file for a run on more than one.
    """

    vendor: str = ""
    names: tuple[str, ...] = ()
    variable: str = "CUDA_VISIBLE_DEVICES"
    several: str = "MULTI_GPU"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a launch is for; ``gpu_variable`` chooses among its ``gpus``.

    ``max_open_files`` is the limit of this process.
    """

    num_cpu_cores: int
    gpus: tuple[str, ...]
    environ: Mapping[str, str]
    gpu_variable: str = "CUDA_VISIBLE_DEVICES"
    max_open_files: int = sys.maxsize


class Vendor(NamedTuple):
    """One kind of accelerator.

    ``is_usable`` returns whether the installed torch supports it; ``visible`` those that a process with an environment
    would see, by the names that ``variable`` has for them, on a machine whose files are below a folder.
    """

    name: str
    variable: str
    several: str
    is_usable: Callable[[], bool]
    visible: Callable[[Mapping[str, str], Path], tuple[str, ...]]


class Gpu(NamedTuple):
    """An NVIDIA GPU; ``uuid`` is empty if it is unknown, and one that MIG has divided ``is_cut``."""

    uuid: str = ""
    is_cut: bool = False


def find_accelerators(
    environ: Mapping[str, str], *, root: Path = ROOT, vendors: Sequence[Vendor] = ()
) -> Accelerators:
    """Return the accelerators of the first vendor that has some and that the installed torch supports."""
    for vendor in vendors or VENDORS:
        if vendor.is_usable() and (names := vendor.visible(environ, root)):
            return Accelerators(vendor.name, names, vendor.variable, vendor.several)
    return Accelerators()


def present_accelerators(*, root: Path = ROOT) -> dict[str, int]:
    """Return the numbers of NVIDIA's and AMD's GPUs that the machine has, whatever torch and variables say of them."""
    counted = {vendor.name: len(vendor.visible({}, root)) for vendor in (NVIDIA, AMD)}
    return {name: number for name, number in counted.items() if number}


def ordinals(number: int) -> tuple[str, ...]:
    """Return the names of ``number`` devices that are known by their place only."""
    return tuple(str(place) for place in range(number))


def chosen(selection: str | None, present: Sequence[str], uuids: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the places in ``present`` that ``selection`` names, in its order.

    As with CUDA, the list ends before the first entry that names no device, and one that names a device twice
    names none at all.

    Args:
        selection: The value of the variable; None chooses all.
        present: The devices, by their numbers.
        uuids: Their unique names, of which the first letters are enough; empty if they are unknown.
    """
    if selection is None:
        return tuple(range(len(present)))
    places: list[int] = []
    for entry in (part.strip() for part in selection.split(",")):
        place = _place(entry, present, uuids)
        if place is None:
            break
        if place in places:
            return ()
        places.append(place)
    return tuple(places)


def _place(entry: str, present: Sequence[str], uuids: Sequence[str]) -> int | None:
    number = _NUMBER.match(entry)  # what follows the digits is ignored, as `strtoul` does
    if number is not None:
        name = str(int(number[0]))
        return present.index(name) if name in present else None
    alike = [place for place, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
    return alike[0] if len(alike) == 1 else None


def asked_for(selection: str, present: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entries of ``--gpu_ids`` up to the first that cannot be among ``present``.

    Numbers are compared. Names (``GPU-…``, ``MIG-…``, or with a number in them) are left to the driver.
    """
    found: list[str] = []
    for entry in (part.strip() for part in selection.split(",")):
        is_name = not entry.lstrip("-").isdigit() and (
            entry.startswith(("GPU-", "MIG-")) or any(letter.isdigit() for letter in entry)
        )
        if not (bool(present) if is_name else entry in present):
            break
        found.append(entry)
    return tuple(found)


def nvidia(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Return NVIDIA's GPUs by ``CUDA_VISIBLE_DEVICES``: numbers, ``GPU-…`` and ``MIG-…``."""
    gpus = _nvidia_gpus(root)
    selection = environ.get("CUDA_VISIBLE_DEVICES")
    first = "" if selection is None else selection.split(",")[0].strip()
    if not gpus:
        return ()
    if first.startswith("MIG-"):
        return (first,)  # the driver's files do not have these names
    uuids = [gpu.uuid for gpu in gpus]
    if selection is not None and first.startswith("GPU-") and not all(uuids):
        return tuple(part.strip() for part in selection.split(",") if part.strip())  # cannot be compared
    places = chosen(selection, ordinals(len(gpus)), uuids)
    # CUDA shows a process at most one MIG instance, and no other GPU next to it.
    cut = [place for place in places if gpus[place].is_cut]
    return tuple(map(str, cut[:1] or places))


def _nvidia_gpus(root: Path) -> list[Gpu]:
    driver = root / "proc" / "driver" / "nvidia"
    listed = [fields_of(path, ":") for path in sorted((driver / "gpus").glob("*/information"))]
    devices = [path for path in entries(root / "dev", r"nvidia(\d+)") if os.access(path, os.R_OK | os.W_OK)]
    if not devices and all((root / trace).exists() for trace in _TRACES_OF_WSL):
        return [Gpu()] * (_number_of_smi() if root == ROOT else 1)
    if not listed:
        return [Gpu() for _ in devices]
    # A container sees all GPUs of its host in `/proc`, but has the device files of its own only.
    own = {path.name.removeprefix("nvidia") for path in devices}
    return [
        Gpu(fields.get("GPU UUID", ""), is_cut=any((driver / f"capabilities/gpu{minor}/mig").glob("gi*/ci*")))
        for fields in listed
        if (minor := fields.get("Device Minor")) in own and fields.get("GPU Excluded", "No") == "No"
    ]


def _number_of_smi() -> int:
    from accel_state.nvidia import query_gpus

    try:
        return len(query_gpus("uuid"))
    except NotAvailableError:
        return 1


def amd(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Return AMD's GPUs by ``ROCR_VISIBLE_DEVICES`` (numbers, ``GPU-…``), and of those by ``HIP_VISIBLE_DEVICES``.

    HIP reads ``CUDA_VISIBLE_DEVICES`` if the latter is not set.
    """
    nodes = [
        node for node in entries(root / _AMD_NODES, r"(\d+)") if text_of(node / "gpu_id") not in ("", "0")
    ]
    numbers = [fields_of(node / "properties").get("unique_id", "0") for node in nodes]
    uuids = [f"GPU-{int(number):016x}" if number.isdigit() else "" for number in numbers]
    left = chosen(environ.get("ROCR_VISIBLE_DEVICES"), ordinals(len(nodes)), uuids)
    selection = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
    return tuple(map(str, chosen(selection, ordinals(len(left)), [uuids[place] for place in left])))


def counted_by_torch(
    environ: Mapping[str, str], root: Path, *, package: str, variable: str
) -> tuple[str, ...]:
    """Return the devices that torch counts in a process with this environment, where ``package`` adds them to it."""
    if root != ROOT:
        return ()
    code = f"import torch, {package}; print(torch.accelerator.device_count())"
    child = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    last_line = (child.stdout if child.returncode == 0 else child.stderr).strip().rpartition("\n")[2]
    if child.returncode != 0 or not last_line.isdigit():
        warn(f"The devices of the package `{package}` cannot be counted, so none is used: {last_line}")
        return ()
    listed = [entry.strip() for entry in environ.get(variable, "").split(",") if entry.strip().isdigit()]
    number = int(last_line)
    return tuple(listed[:number]) if len(listed) >= number else ordinals(number)


def is_built_for(platform: str) -> bool:
    """Return whether torch was built for ``cuda``, ``hip`` or ``xpu``; also true if its files do not say."""
    spec = find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    return says_built_for(platform, Path(folders[0]) / "version.py") if folders else True


def says_built_for(platform: str, version_file: Path) -> bool:
    """Return whether torch was built for ``platform`` by its ``version.py``."""
    if not version_file.is_file():
        return True
    said = dict(_BUILT_FOR.findall(version_file.read_text(encoding="utf-8")))
    return said.get(platform, "").strip() != "None" if said else True


def entries(folder: Path, pattern: str) -> list[Path]:
    """Return the files in ``folder`` whose names match ``pattern``, by the number in its first group."""
    try:
        matches = [match for path in folder.iterdir() if (match := re.fullmatch(pattern, path.name))]
    except OSError:
        return []
    return [folder / match[0] for match in sorted(matches, key=lambda match: int(match[1]))]


def text_of(path: Path) -> str:
    """Return the content of a file, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def fields_of(path: Path, separator: str | None = None) -> dict[str, str]:
    """Return the lines ``NAME VALUE`` of a file as a dictionary."""
    pairs = (line.split(separator, 1) for line in text_of(path).splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}


def num_cpu_cores() -> int:
    """Return the cores that this process may run on, no more than its container's share of time comes to."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota(_own_group(), root=Path("/sys/fs/cgroup")) or cores)


def quota(group: str, *, root: Path) -> int | None:
    """Return the cores that a control group may use, rounded up; None if there is no limit.

    Args:
        group: Its path below ``root``; the groups around it limit it too.
        root: Where the kernel shows control groups: ``cpu.max`` (version 2), ``cpu/cpu.cfs_quota_us`` (version 1).
    """
    found = [math.ceil(time / period) for time, period in _limits(group.strip("/"), root) if time > 0]
    return max(1, min(found)) if found else None


def threads_of(num_cores: int, *, num_ranks: int, is_on_cpu: bool) -> int:
    """Return the threads of each rank: its share of the cores, or one with an accelerator, as with torchrun."""
    return max(1, num_cores // num_ranks) if is_on_cpu else 1


def _limits(group: str, root: Path) -> Iterator[tuple[int, int]]:
    folder = root / group
    for path in (folder, *folder.parents):
        words = text_of(path / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            yield int(words[0]), int(words[1])
        if path == root:
            break
    time, period = (text_of(root / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if time and period:
        yield int(time), int(period)


def _own_group() -> str:
    lines = text_of(Path("/proc/self/cgroup")).splitlines()
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")


def _extension(name: str, variable: str, several: str, package: str) -> Vendor:
    return Vendor(
        name,
        variable,
        several,
        lambda: find_spec(package.partition(".")[0]) is not None,
        partial(counted_by_torch, package=package, variable=variable),
    )


NVIDIA = Vendor("nvidia", "CUDA_VISIBLE_DEVICES", "MULTI_GPU", partial(is_built_for, "cuda"), nvidia)
AMD = Vendor("amd", "HIP_VISIBLE_DEVICES", "MULTI_GPU", partial(is_built_for, "hip"), amd)
_MASK = "ZE_AFFINITY_MASK"
_INTEL = partial(counted_by_torch, package="torch", variable=_MASK)
VENDORS = (
    NVIDIA,
    AMD,
    Vendor("intel", _MASK, "MULTI_XPU", partial(is_built_for, "xpu"), _INTEL),
    _extension("npu", "ASCEND_RT_VISIBLE_DEVICES", "MULTI_NPU", "torch_npu"),
    _extension("mlu", "MLU_VISIBLE_DEVICES", "MULTI_MLU", "torch_mlu"),
    _extension("musa", "MUSA_VISIBLE_DEVICES", "MULTI_MUSA", "torch_musa"),
    _extension("hpu", "HABANA_VISIBLE_MODULES", "MULTI_HPU", "habana_frameworks.torch"),
    _extension("sdaa", "SDAA_VISIBLE_DEVICES", "MULTI_SDAA", "torch_sdaa"),
    _extension("neuron", "NEURON_RT_VISIBLE_CORES", "MULTI_NEURON", "torch_neuronx"),
)
"""In the order in which a run takes them."""
