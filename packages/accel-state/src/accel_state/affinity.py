"""CPU affinity: bind a process to the cores near its GPU, which Linux lists under ``/sys``."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from accel_state.environment import read, snapshot, variable
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.launched_by import detect_topology

DEVICES = Path("/sys/bus/pci/devices")


@dataclass
class CPUInformation:
    """A process's place in a run on CPUs."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_cpu_distributed_information() -> CPUInformation:
    """Return this process's ranks and sizes, from the variables of any launcher."""
    topology = detect_topology(snapshot())
    return CPUInformation(topology.rank, topology.world_size, topology.local_rank, topology.local_world_size)


@functools.cache
def set_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Bind this process to the cores near the GPU of its local rank, once.

    Later calls with the same arguments do nothing; `override_numa_affinity` binds again.

    Args:
        local_process_index: The rank on this machine, which is also the index of the visible GPU.
        verbose: Print the cores; by default if ``ACCELERATE_DEBUG_MODE`` is on.

    Raises:
        NotAvailableError: If `pynvml`, the driver or the operating system cannot do it, or no near core is open.
        ConfigError: If the local rank has no GPU.
    """
    override_numa_affinity(local_process_index, verbose)


def override_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Bind this process to the cores near the GPU of its local rank, replacing an earlier binding.

    Cores outside of the CPU set of a container or a scheduler are never used. If the GPU is equally near to all cores,
    as in most virtual machines, nothing changes. Arguments as for `set_numa_affinity`.

    Raises:
        NotAvailableError: If `pynvml`, the driver or the operating system cannot do it, or no near core is open.
        ConfigError: If the local rank has no GPU.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise NotAvailableError("Binding processes to cores needs Linux. Set `enable_cpu_affinity` to false.")
    allowed = os.sched_getaffinity(0)
    near = cores_near(_bus_id(local_process_index))
    cores = near & allowed if near else allowed
    if not cores:
        raise NotAvailableError(
            f"None of the cores near GPU {local_process_index} is open to this process. "
            "Widen its CPU set, or set `enable_cpu_affinity` to false."
        )
    os.sched_setaffinity(0, cores)
    if read("debug_mode") if verbose is None else verbose:
        print(f"Process {local_process_index} runs on {len(cores)} cores: {sorted(cores)}", flush=True)  # noqa: T201 -- requested


def _bus_id(local_process_index: int) -> str:
    """Return the address of a visible GPU on the PCI bus, as the system writes it."""
    nvml = _nvml()
    try:
        nvml.nvmlInit()
        try:
            bus_id = nvml.nvmlDeviceGetPciInfo(_gpu_handle(nvml, local_process_index)).busId
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise NotAvailableError(
            f"The NVIDIA driver does not report where GPU {local_process_index} is: {error}. Check it with "
            "`nvidia-smi`, or set `enable_cpu_affinity` to false."
        ) from error
    # NVML writes the domain with eight digits, older releases of its package as bytes.
    domain, _, rest = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _gpu_handle(nvml: Any, local_process_index: int) -> Any:
    """Return NVML's handle of a visible GPU; NVML's indices include hidden GPUs."""
    visible = variable("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(local_process_index)
    devices = [device.strip() for device in visible.split(",") if device.strip()]
    if local_process_index >= len(devices):
        raise ConfigError(
            f"Process {local_process_index} of this machine has no GPU: `CUDA_VISIBLE_DEVICES` is "
            f"`{visible}`. Start at most one process per GPU that it names."
        )
    device = devices[local_process_index]
    if device.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(device))
    return nvml.nvmlDeviceGetHandleByUUID(device)


def _nvml() -> Any:
    from accel_state.availability import why_not

    reason = why_not("pynvml")
    if reason is not None:
        raise NotAvailableError(f"Binding processes to cores near their GPU needs `pynvml`. {reason}")
    return import_module("pynvml")


def cores_near(bus_id: str) -> set[int]:
    """Return the cores of the NUMA node of a device: all if it belongs to none, none if the node has only memory.

    Args:
        bus_id: Address of the device on the PCI bus, such as ``0000:3b:00.0``.

    Raises:
        NotAvailableError: If the system does not report it.
    """
    try:
        return _numbers((DEVICES / bus_id / "local_cpulist").read_text(encoding="ascii").strip())
    except OSError as error:
        raise NotAvailableError(
            f"The system does not report which cores are near a device: {error}. Set `enable_cpu_affinity` to false, "
            "or let the container see `/sys`."
        ) from error


def _numbers(numbers: str) -> set[int]:
    """Return the numbers in a list such as ``0-3,8``."""
    parsed: set[int] = set()
    for part in filter(None, numbers.split(",")):
        first, _, last = part.partition("-")
        parsed.update(range(int(first), int(last or first) + 1))
    return parsed
