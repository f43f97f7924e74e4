"""Intel Gaudi, driven by `habana_frameworks.torch` (https://docs.habana.ai/en/latest/PyTorch)."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from accel_state.devices.backend import DeviceBackend


class HpuBackend(DeviceBackend):
    """One HPU per process; the processes communicate over Habana's HCCL."""

    @property
    def rng_module(self) -> Any:
        return self.module.random

    def device(self, local_rank: int) -> torch.device:
        # A process acquires one free HPU, which it calls plain `hpu`.
        return torch.device("hpu")

    def set_device(self, device: torch.device) -> None:
        """Nothing to set: the process has one HPU."""

    def process_group_options(self) -> dict[str, Any]:
        # The import registers the backend with torch.
        importlib.import_module("habana_frameworks.torch.distributed.hccl")
        return {}

    def empty_cache(self) -> None:
        """Nothing to release: the bridge reserves all of the device's memory."""

    def _computes_in(self, dtype: torch.dtype) -> bool:
        if dtype == torch.float16:  # on all but the first generation
            experimental = importlib.import_module("habana_frameworks.torch.utils.experimental")
            return bool(experimental._get_device_type() != experimental.synDeviceType.synDeviceGaudi)
        return super()._computes_in(dtype)
