"""Device maps: the device of each module's weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import nn

from accel_ops.named_tensors import walk_modules
from accel_state.devices import current_device_backend
from accel_state.errors import ConfigError, did_you_mean
from accel_state.runtime import current_runtime, has_runtime
from accel_state.user_warnings import warn_user

Device = TypeVar("Device")
DeviceMap: TypeAlias = Mapping[str, int | str | torch.device]


def device_of(name: str, device_map: DeviceMap) -> int | str | torch.device | None:
    """Return the device of ``name``: its entry or that of the nearest enclosing module, else ``None``."""
    prefix = name
    while prefix:
        if prefix in device_map:
            return device_map[prefix]
        prefix = prefix.rpartition(".")[0]
    return device_map.get("")


def check_device_map(model: nn.Module, device_map: DeviceMap) -> None:
    """Check that a map covers all tensors of the model, and warn about keys that are not part of it.

    Raises:
        ConfigError: If a parameter or buffer is covered by no entry.
    """
    if device_map.keys() == {""}:
        return
    modules, parameters, buffers = list[str](), list[str](), list[str]()
    for name, module in walk_modules(model):
        modules.append(name)
        prefix = f"{name}." if name else ""
        parameters += [prefix + key for key, tensor in module._parameters.items() if tensor is not None]
        buffers += [prefix + key for key, tensor in module._buffers.items() if tensor is not None]
    known = {*modules, *parameters, *buffers}
    unknown = [name for name in device_map if name not in known]
    if unknown:
        warn_user(
            f"These device_map keys do not match any submodules: {', '.join(f'`{name}`' for name in unknown)}. "
            f"Correct or remove them.{''.join(did_you_mean(name, modules[1:]) for name in unknown)}"
        )
    check_covered([*parameters, *buffers], device_map)


def check_covered(names: Iterable[str], device_map: DeviceMap) -> None:
    """Check that a map covers all of ``names``.

    Raises:
        ConfigError: If it does not; names the first five.
    """
    left_out = [name for name in names if device_of(name, device_map) is None]
    if left_out:
        more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        raise ConfigError(
            f"`device_map` does not cover {', '.join(left_out[:5])}{more}. "
            "Add them, or a default under the key `''`."
        )


def clean_device_map(device_map: dict[str, Device], module_name: str = "") -> dict[str, Device]:
    """Merge entries of a module whose parts are all on one device; changes and returns the map.

    Args:
        device_map: A map without nested entries, as returned by `infer_auto_device_map`.
        module_name: Merge only entries inside this module.
    """
    inside: dict[str, list[str]] = {}
    for name in device_map:
        around = name
        while around:
            around = around.rpartition(".")[0]
            inside.setdefault(around, []).append(name)
    _clean(device_map, inside, module_name)
    return device_map


def _clean(device_map: MutableMapping[str, Device], inside: Mapping[str, list[str]], name: str) -> None:
    names = inside.get(name, [])
    devices = [device_map[inner] for inner in names]
    if len(devices) > 1 and all(device == devices[0] for device in devices):
        for inner in names:
            del device_map[inner]
        device_map[name] = devices[0]
        return
    prefix = f"{name}." if name else ""
    for child in dict.fromkeys(prefix + inner[len(prefix) :].partition(".")[0] for inner in names):
        if child != name and child in inside:
            _clean(device_map, inside, child)


def check_tied_parameters_on_same_device(tied_params: Sequence[Sequence[str]], device_map: DeviceMap) -> None:
    """Warn about tied parameters on several devices, which use memory on each."""
    for group in tied_params:
        devices = {name: device_of(name, device_map) for name in group}
        if len(set(devices.values())) > 1:
            places = ", ".join(f"`{name}` on `{device}`" for name, device in devices.items())
            warn_user(
                f"Tied parameters are on different devices: {places}. Each device holds a copy of them. "
                "To train them, put their modules on one device in `device_map`.",
                main_process_only=False,
            )


def default_device() -> torch.device:
    """Return the device of this process; before it has one, the current accelerator, or the CPU."""
    return current_runtime().device if has_runtime() else torch.device(current_device_backend().name)
