"""The table of device vendors: a new one is a row here, or an entry point of another package. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from accel_state.enums import DistributedType
from accel_state.environment import find_setting, read
from accel_state.errors import ConfigError, UnknownNameError
from accel_state.registry import Registry
from accel_state.versions import Package


def _precisions(**needs: str) -> Mapping[str, str]:
    return MappingProxyType(needs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One kind of device.

    Args:
        name: The device type, as torch calls it (``cuda``).
        label: The name in messages.
        collective_backend: The process group backend of several processes, or several (``cpu:gloo,cuda:nccl``); None
            if only one process can run on such devices.
        distributed_type: The `DistributedType` of a run of several processes.
        plugin: The package that adds the device to torch; None if torch has it.
        backend: The class that drives the devices, as ``module:Class``; it is called with the vendor.
        switch: The setting that disables these devices if it is false.
        hint: The requirements to name if torch finds no device.
        precisions: The 16-bit and 8-bit dtypes that operations can be cast to, each with its requirement; empty if
            every such device has it.
        compiler: The backend of `torch.compile` that generates code for these devices.

    Raises:
        ConfigError: If there is no such `DistributedType`.
    """

    name: str
    label: str
    collective_backend: str | None
    distributed_type: DistributedType = DistributedType.MULTI_GPU
    plugin: Package | None = None
    backend: str = "accel_state.devices.backend:DeviceBackend"
    switch: str | None = None
    hint: str = ""
    precisions: Mapping[str, str] = field(default_factory=lambda: _precisions(bf16="", fp16=""), hash=False)
    compiler: str = "inductor"

    def __post_init__(self) -> None:
        object.__setattr__(self, "distributed_type", DistributedType(self.distributed_type))

    def not_installed_reason(self) -> str | None:
        """Return why the vendor's package is missing or disabled, None if it is usable; the package is not imported."""
        if self.switch is not None and not read(self.switch):
            return f"No {self.label}: `{find_setting(self.switch).variable}` is false."
        if self.plugin is None or self.plugin.module in sys.modules:
            return None
        reason = self.plugin.unavailable_reason()
        return reason and f"No {self.label}: {reason}"


def _extension(
    name: str, label: str, collective_backend: str, module: str, *, compiler: str = "inductor"
) -> Vendor:
    """Return the vendor whose package adds ``torch.<name>`` as torch's device type ``privateuse1``."""
    return Vendor(
        name=name,
        label=label,
        collective_backend=collective_backend,
        distributed_type=DistributedType(f"MULTI_{name.upper()}"),
        plugin=Package(module, (module.replace("_", "-"),)),
        precisions=_precisions(bf16="a chip and a package that have it", fp16="a package that has it"),
        compiler=compiler,
    )


_VENDORS = {
    vendor.name: vendor
    for vendor in (
        _extension("mlu", "Cambricon MLU", "cncl", "torch_mlu"),  # https://github.com/Cambricon/torch_mlu
        _extension("sdaa", "Tecorigin SDAA", "tccl", "torch_sdaa"),
        _extension(
            "musa", "Moore Threads MUSA", "mccl", "torch_musa"
        ),  # https://github.com/MooreThreads/torch_musa
        _extension("npu", "Ascend NPU", "hccl", "torch_npu"),  # https://github.com/Ascend/pytorch
        Vendor(
            name="hpu",
            label="Habana HPU",
            collective_backend="hccl",
            distributed_type=DistributedType.MULTI_HPU,
            plugin=Package("habana_frameworks.torch", ("habana-torch-plugin", "habana_frameworks")),
            backend="accel_state.devices.hpu:HpuBackend",
            precisions=_precisions(bf16="", fp16="Gaudi 2 or newer"),
            compiler="hpu_backend",
        ),
        # https://awsdocs-neuron.readthedocs-hosted.com
        _extension("neuron", "AWS Neuron", "neuron", "torch_neuronx", compiler="neuron"),
        Vendor(
            name="xla",
            label="XLA device",
            collective_backend="xla",
            distributed_type=DistributedType.XLA,
            plugin=Package("torch_xla", ("torch-xla",)),
            backend="accel_state.devices.xla:XlaBackend",
            switch="use_torch_xla",
            precisions=_precisions(bf16=""),
            compiler="openxla",
        ),
        Vendor(
            name="cuda",
            label="CUDA device",
            collective_backend="cpu:gloo,cuda:nccl",
            distributed_type=DistributedType.MULTI_GPU,
            backend="accel_state.devices.cuda:CudaBackend",
            precisions=_precisions(
                bf16="compute capability 8.0 or higher, or ROCm",
                fp16="",
                fp8="compute capability 8.9 or higher, or ROCm",
            ),
        ),
        Vendor(
            name="xpu",
            label="Intel GPU",
            collective_backend="cpu:gloo,xpu:xccl",
            distributed_type=DistributedType.MULTI_XPU,
            hint="It needs a torch built for XPU and Intel's GPU driver.",
            precisions=_precisions(bf16="a GPU that converts to it", fp16=""),
        ),
        Vendor(
            name="mps",
            label="MPS device",
            collective_backend=None,
            distributed_type=DistributedType.NO,
            backend="accel_state.devices.mps:MpsBackend",
            precisions=_precisions(bf16="macOS 14 or newer", fp16=""),
        ),
        Vendor(
            name="cpu",
            label="CPU",
            collective_backend="gloo",
            distributed_type=DistributedType.MULTI_CPU,
            backend="accel_state.devices.cpu:CpuBackend",
            precisions=_precisions(
                bf16="", fp16="`ACCEL_FP16_ON_CPU=true`, to try a script out: it is slower than fp32", fp8=""
            ),
        ),
    )
}
"""By name, the preferred first: a process uses the first that is available. The CPU, always available, is the last."""

_ADDED = Registry[Vendor]("device", "accel.devices")


def known_vendors() -> tuple[Vendor, ...]:
    """Return all vendors, the preferred first: vendors of other packages, then the table.

    Raises:
        ConfigError: If a package adds a device type that is in the table.
    """
    added = {vendor.name: vendor for _, vendor in _ADDED.items()}
    for name in sorted(added.keys() & _VENDORS.keys()):
        raise ConfigError(
            f"The device `{name}`, which an entry point of `accel.devices` adds, exists already. Use the name of "
            "another device type."
        )
    return (*added.values(), *_VENDORS.values())


def find_vendor(name: str) -> Vendor:
    """Return the vendor of the devices that torch calls ``name``.

    Raises:
        UnknownNameError: If there is none.
    """
    if name in _VENDORS:
        return _VENDORS[name]
    known = {vendor.name: vendor for vendor in known_vendors()}
    if name not in known:
        raise UnknownNameError.of("device", name, known)
    return known[name]
