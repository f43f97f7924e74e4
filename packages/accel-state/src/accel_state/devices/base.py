"""What most devices have in common: nothing to set up, nothing to add."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from accel_state.devices.vendors import Vendor
from accel_state.topology import Topology

_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
"""What the table of vendors calls the formats of 16 and 8 bits."""


class VendorBackend:
    """The defaults of `DeviceBackend`."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor

    @property
    def name(self) -> str:
        return self.vendor.name

    @property
    def collective_backend(self) -> str | None:
        return self.vendor.collective_backend

    @property
    def distributed_type(self) -> str:
        return self.vendor.distributed_type

    def why_not(self, *, check_device: bool = False) -> str | None:
        return self.vendor.why_not_installed()

    def set_device(self, device: torch.device) -> None:
        """Nothing to set: the process has one device."""

    def refine_topology(self, topology: Topology) -> Topology:
        return topology

    def process_group_options(self) -> dict[str, Any]:
        return {}

    def barrier(self, device: torch.device) -> None:
        dist.barrier()

    def empty_cache(self) -> None:
        """Nothing to give back: no cache is kept."""

    def why_not_dtype(self, dtype: torch.dtype) -> str | None:
        name = _NAMES.get(dtype)
        if name is None:
            return None
        if name not in self.vendor.precisions:
            return f"On devices of this kind {name} is not offered."
        if self._computes_in(dtype):
            return None
        return f"Here {name} needs {self.vendor.precisions[name]}."

    def _computes_in(self, dtype: torch.dtype) -> bool:
        """Tell whether the device at hand has what the table of vendors says that ``dtype`` needs."""
        return True

    def supports(self, dtype: torch.dtype) -> bool:
        return self.why_not_dtype(dtype) is None
