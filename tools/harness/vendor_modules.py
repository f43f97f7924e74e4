"""Fake modules of device vendors: two devices on the CPU, with only the documented functions."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from accel_state.devices.vendors import find_vendor

GIB = 2**30


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OF_TORCH = _names(
    "current_device device_count empty_cache get_device_name get_rng_state get_rng_state_all initial_seed is_available"
    " manual_seed manual_seed_all memory_allocated seed seed_all set_device set_rng_state set_rng_state_all"
    " synchronize"
)
"""Functions that every vendor has adopted from `torch.cuda`."""

_FULL = _OF_TORCH | {"get_amp_supported_dtype", "is_bf16_supported", "mem_get_info"}
_DOCUMENTED: dict[str, frozenset[str]] = {
    # https://docs.pytorch.org/docs/stable/cuda.html
    "cuda": _OF_TORCH
    | {"get_device_capability", "get_device_properties", "is_bf16_supported", "mem_get_info"},
    # https://docs.habana.ai/en/latest/PyTorch/Reference/Python_Packages.html; random numbers are in `torch.hpu.random`
    "hpu": _names(
        "current_device device_count get_device_name is_available mem_get_info memory_allocated random synchronize"
    ),
    "hpu.random": _names("get_rng_state initial_seed manual_seed manual_seed_all set_rng_state"),
    # https://docs.pytorch.org/docs/stable/mps.html
    "mps": _names(
        "current_allocated_memory device_count driver_allocated_memory empty_cache get_rng_state is_available"
        " manual_seed recommended_max_memory seed set_rng_state synchronize"
    ),
    # https://awsdocs-neuron.readthedocs-hosted.com/en/latest/torch/index.html; figures of memory are in `torch_neuronx`
    "neuron": _OF_TORCH - {"memory_allocated"} | {"get_amp_supported_dtype"},
    # https://docs.pytorch.org/docs/stable/xpu.html
    "xpu": _OF_TORCH | {"get_device_properties", "is_bf16_supported", "mem_get_info"},
    "mlu": _FULL,  # https://github.com/Cambricon/torch_mlu/blob/master/torch_mlu/mlu/__init__.py
    "musa": _FULL,  # https://github.com/MooreThreads/torch_musa
    "npu": _FULL,  # https://github.com/Ascend/pytorch/blob/master/torch_npu/npu/__init__.py
    "sdaa": _FULL,  # what DeepSpeed calls (deepspeed/accelerator/sdaa_accelerator.py), and `mem_get_info`
}


class VendorModule(types.ModuleType):
    """A fake of `torch.<name>`, for two devices of 16 GiB: what its vendor does not document is an `AttributeError`.

    Attributes:
        calls: The functions called so far, in their order.
        has_bf16: Whether it reports bf16 support.
        has_fp64: Whether its devices' properties report fp64.
        castable: The dtypes that it reports for autocast.
        capability: The compute capability of the devices.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"torch.{name}")
        self._real = getattr(torch, name, None)
        self._name = name
        self._current = 0
        self.calls: list[str] = []
        self.has_bf16 = self.has_fp64 = True
        self.castable = [torch.float16, torch.bfloat16]
        self.capability = (9, 0)
        functions = self._functions(torch.Generator())
        for documented in _DOCUMENTED[name] - {"random"}:
            setattr(self, documented, self._logged(documented, functions[documented]))
        if "random" in _DOCUMENTED[name]:
            self.random = VendorModule(f"{name}.random")
            self.random.calls = self.calls

    def _functions(self, generator: torch.Generator) -> dict[str, Callable[..., Any]]:
        """Return the functions of all vendors, with the arguments that they take."""
        return {
            "is_available": lambda: True,
            "device_count": lambda: 1 if self._name == "mps" else 2,
            "current_device": lambda: self._current,
            "set_device": lambda device: setattr(self, "_current", self._number(device)),
            "get_device_name": lambda device=None: "stand-in",
            "get_device_capability": lambda device=None: self.capability,
            "get_device_properties": lambda device=None: types.SimpleNamespace(
                has_fp64=self.has_fp64, uuid=self._number(device) + 10
            ),
            "synchronize": lambda device=None: None,
            "empty_cache": lambda: None,
            "mem_get_info": lambda device=None: (12 * GIB, 16 * GIB),
            "memory_allocated": lambda device=None: 4 * GIB,
            "current_allocated_memory": lambda: 3 * GIB,
            "driver_allocated_memory": lambda: 4 * GIB,
            "recommended_max_memory": lambda: 16 * GIB,
            "is_bf16_supported": self._is_bf16_supported,
            "get_amp_supported_dtype": lambda: self.castable,
            "get_rng_state": lambda device=None: generator.get_state(),
            "get_rng_state_all": lambda: [generator.get_state()] * 2,
            "set_rng_state": lambda new_state, device=None: generator.set_state(new_state),
            "set_rng_state_all": lambda new_states: generator.set_state(new_states[0]),
            "manual_seed": generator.manual_seed,
            "manual_seed_all": generator.manual_seed,
            "initial_seed": generator.initial_seed,
            "seed": generator.seed,
            "seed_all": generator.seed,
        }

    def _number(self, device: torch.device | int | None) -> int:
        return self._current if device is None else device if isinstance(device, int) else device.index

    def _is_bf16_supported(self, **including_emulation: bool) -> bool:
        takes_it = self._name in ("cuda", "xpu")
        if including_emulation and (not takes_it or set(including_emulation) != {"including_emulation"}):
            raise TypeError(f"`{self.__name__}.is_bf16_supported` takes no {including_emulation}.")
        return self.has_bf16 or (takes_it and including_emulation.get("including_emulation", True))

    def _logged(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            return function(*args, **kwargs)

        return call

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and self._real is not None:
            return getattr(self._real, name)  # torch calls private functions of its modules
        message = f"`{self.__name__}.{name}` is not among the functions that its vendor documents."
        raise AttributeError(message, name=name, obj=self)


@contextmanager
def vendor_module(name: str) -> Iterator[VendorModule]:
    """Put the fake of a vendor's module into torch, and empty modules for its package, for a block.

    Args:
        name: What torch calls the device type. The devices are the vendor's in name only: torch makes no tensors there.
    """
    module = VendorModule(name)
    with ExitStack() as stack:
        packages = {
            full_name: one for full_name, one in _packages(name).items() if full_name not in sys.modules
        }
        sys.modules.update(packages)
        for full_name in packages:
            stack.callback(sys.modules.pop, full_name)
        stack.enter_context(patch.object(torch, name, module, create=True))
        if name == "mps":
            for question in ("is_built", "is_available", "is_macos_or_newer"):
                stack.enter_context(patch.object(torch.backends.mps, question, lambda *version: True))
        yield module


def _packages(name: str) -> dict[str, types.ModuleType]:
    plugin = find_vendor(name).plugin
    names = [] if plugin is None else [plugin.module]
    if name == "hpu":
        names += ["habana_frameworks.torch.distributed.hccl", "habana_frameworks.torch.utils.experimental"]
    modules: dict[str, types.ModuleType] = {}
    for full_name in names:
        parts = full_name.split(".")
        for end in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:end]), types.ModuleType(parts[end - 1]))
    if name == "hpu":
        experimental: Any = modules["habana_frameworks.torch.utils.experimental"]
        experimental.synDeviceType = types.SimpleNamespace(synDeviceGaudi=1, synDeviceGaudi2=2)
        experimental._get_device_type = lambda: 2
    return modules
