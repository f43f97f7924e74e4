"""The table of device vendors; a new one is a row here, or is added by `register_vendor`. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from accel_state.availability.package import Package, why_package_not
from accel_state.enums import DistributedType, RNGType, add_member
from accel_state.environment import find_setting, read
from accel_state.errors import ConfigError, UnknownNameError


def _casting_to(**needs: str) -> Mapping[str, str]:
    return MappingProxyType(needs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One kind of device.

    Args:
        name: What torch calls its devices (``cuda``).
        title: What people call them.
        collective_backend: The process group backend of several processes, or several (``cpu:gloo,cuda:nccl``); None
            where there can be one only.
        distributed_type: What users' code calls a run of several processes.
        packages: What adds the device to torch: any one of these has to be installed. Empty where torch has it.
        plugin: The module of that package that has to be imported.
        backend: The class that drives the devices, as ``module:Class``; it is called with the vendor.
        switch: The setting that keeps processes off these devices where it is false.
        hint: What is needed where torch finds no device.
        precisions: The number formats of 16 and 8 bits that operations can be cast to, each with what it needs; empty
            where every such device has it.
        compiler: The backend of `torch.compile` that generates code for these devices.
    """

    name: str
    title: str
    collective_backend: str | None
    distributed_type: str
    packages: tuple[Package, ...] = ()
    plugin: str | None = None
    backend: str = "accel_state.devices.backend:DeviceBackend"
    switch: str | None = None
    hint: str = ""
    precisions: Mapping[str, str] = field(default_factory=lambda: _casting_to(bf16="", fp16=""), hash=False)
    compiler: str = "inductor"

    def why_not_installed(self) -> str | None:
        """Say why the vendor's package cannot or must not be used, without importing it; None if it can."""
        if self.switch is not None and not read(self.switch):
            return f"No {self.title}: `{find_setting(self.switch).variable}` is false."
        if not self.packages or (self.plugin is not None and self.plugin in sys.modules):
            return None
        reasons = [why_package_not(package) for package in self.packages]
        return None if None in reasons else f"No {self.title}: {reasons[0]}"


def _extension(
    name: str, title: str, collective_backend: str, package: str, *, compiler: str = "inductor"
) -> Vendor:
    """A vendor whose ``package`` adds ``torch.<name>`` as torch's spare device type."""
    return Vendor(
        name=name,
        title=title,
        collective_backend=collective_backend,
        distributed_type=f"MULTI_{name.upper()}",
        packages=(Package(package, (package.replace("_", "-"),)),),
        plugin=package,
        precisions=_casting_to(bf16="a chip and a package that have it", fp16="a package that has it"),
        compiler=compiler,
    )


#: Looked at from the top; a process uses the first that is available. The CPU, always available, comes last.
_VENDORS = (
    _extension("mlu", "Cambricon MLU", "cncl", "torch_mlu"),  # https://github.com/Cambricon/torch_mlu
    _extension("sdaa", "Tecorigin SDAA", "tccl", "torch_sdaa"),
    _extension(
        "musa", "Moore Threads MUSA", "mccl", "torch_musa"
    ),  # https://github.com/MooreThreads/torch_musa
    _extension("npu", "Ascend NPU", "hccl", "torch_npu"),  # https://github.com/Ascend/pytorch
    Vendor(
        name="hpu",
        title="Habana HPU",
        collective_backend="hccl",
        distributed_type="MULTI_HPU",
        packages=(
            Package("habana_frameworks", ("habana-torch-plugin",)),
            Package("habana_frameworks", ("habana_frameworks",)),
        ),
        plugin="habana_frameworks.torch",
        backend="accel_state.devices.hpu:HpuBackend",
        precisions=_casting_to(bf16="", fp16="Gaudi 2 or newer"),
        compiler="hpu_backend",
    ),
    # https://awsdocs-neuron.readthedocs-hosted.com
    _extension("neuron", "AWS Neuron", "neuron", "torch_neuronx", compiler="neuron"),
    Vendor(
        name="xla",
        title="XLA device",
        collective_backend="xla",
        distributed_type="XLA",
        packages=(Package("torch_xla", ("torch-xla",)),),
        plugin="torch_xla",
        backend="accel_state.devices.xla:XlaBackend",
        switch="use_torch_xla",
        precisions=_casting_to(bf16=""),
        compiler="openxla",
    ),
    Vendor(
        name="cuda",
        title="CUDA device",
        collective_backend="cpu:gloo,cuda:nccl",
        distributed_type="MULTI_GPU",
        backend="accel_state.devices.cuda:CudaBackend",
        precisions=_casting_to(
            bf16="compute capability 8.0 or higher, or ROCm",
            fp16="",
            fp8="compute capability 8.9 or higher, or ROCm",
        ),
    ),
    Vendor(
        name="xpu",
        title="Intel GPU",
        collective_backend="cpu:gloo,xpu:xccl",
        distributed_type="MULTI_XPU",
        hint="It needs a torch built for XPU and Intel's GPU driver.",
        precisions=_casting_to(bf16="a GPU that converts to it", fp16=""),
    ),
    Vendor(
        name="mps",
        title="MPS device",
        collective_backend=None,
        distributed_type="NO",
        backend="accel_state.devices.mps:MpsBackend",
        precisions=_casting_to(bf16="macOS 14 or newer", fp16=""),
    ),
    Vendor(
        name="cpu",
        title="CPU",
        collective_backend="gloo",
        distributed_type="MULTI_CPU",
        backend="accel_state.devices.cpu:CpuBackend",
        precisions=_casting_to(
            bf16="", fp16="`ACCEL_FP16_ON_CPU=true`, to try a script out: it is slower than fp32", fp8=""
        ),
    ),
)
_by_name: dict[str, Vendor] = {vendor.name: vendor for vendor in _VENDORS}


def known_vendors() -> tuple[Vendor, ...]:
    """Return all vendors, the preferred first."""
    return tuple(_by_name.values())


def find_vendor(name: str) -> Vendor:
    """Return the vendor of the devices that torch calls ``name``.

    Raises:
        UnknownNameError: If there is none.
    """
    if name not in _by_name:
        raise UnknownNameError.of("device", name, _by_name)
    return _by_name[name]


def register_vendor(vendor: Vendor) -> None:
    """Add a vendor for the rest of this process, preferred to all others.

    Its devices can be asked for by name, are chosen if they are available, and have members of `DistributedType`
    and `RNGType`.

    Raises:
        ConfigError: If there is another vendor of that name.
    """
    known = _by_name.get(vendor.name)
    if known not in (None, vendor):
        raise ConfigError(
            f"The device `{vendor.name}` exists already. Choose the name of another device type."
        )
    others = {name: other for name, other in _by_name.items() if other is not known}
    _by_name.clear()
    _by_name.update({vendor.name: vendor, **others})
    add_member(DistributedType, vendor.distributed_type)
    add_member(RNGType, vendor.name)
