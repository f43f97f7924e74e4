"""Hooks on all modules of a model that need one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_bigmodel.hooks.align import AlignDevicesHook, HookSettings
from accel_bigmodel.hooks.base import add_hook_to_module, hooks_of
from accel_bigmodel.offload.placeholders import weight_of
from accel_bigmodel.offload.store import OffloadedWeightsLoader, PrefixedDataset
from accel_bigmodel.tensors import TiedParams, check_aliases
from accel_state.errors import StateError

Device = int | str | torch.device


def attach_execution_device_hook(
    module: nn.Module,
    execution_device: Device,
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedParams | None = None,
) -> None:
    """Make every submodule with weights and without a hook move its inputs to ``execution_device``.

    Args:
        module: Its weights must be on that device already, or be moved there by their hooks.
        execution_device: The device that runs the modules.
        skip_keys: Keyword arguments that are not moved.
        preload_module_classes: Names of classes whose submodules get no hooks.
        tied_params_map: As for `AlignDevicesHook`.
    """
    if not hooks_of(module) and _has_tensors(module):
        hook = AlignDevicesHook(execution_device, skip_keys=skip_keys, tied_params_map=tied_params_map)
        add_hook_to_module(module, hook)
    if type(module).__name__ in (preload_module_classes or ()):
        return
    for child in module.children():
        attach_execution_device_hook(
            child, execution_device, skip_keys, preload_module_classes, tied_params_map
        )


def attach_align_device_hook(
    module: nn.Module,
    execution_device: torch.device | None = None,
    offload: bool = False,
    weights_map: Mapping[str, Any] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedParams | None = None,
) -> None:
    """Add an `AlignDevicesHook` to every submodule that has direct parameters or buffers.

    Args:
        module: The module to start from.
        execution_device: The device that runs the modules.
        offload: Offload their weights to ``weights_map`` between forward passes.
        weights_map: Stored weights by full dotted name, on the CPU or on disk, of the same shapes as the model's.
        offload_buffers: Offload buffers too.
        module_name: The dotted name of ``module`` in the model.
        skip_keys: Keyword arguments that are not moved.
        preload_module_classes: Names of classes whose submodules are loaded together with them.
        tied_params_map: As for `AlignDevicesHook`.
    """
    settings = _settings_of(weights_map, offload_buffers, skip_keys, preload_module_classes, tied_params_map)
    attach(module, module_name, {"": execution_device}, {"": offload}, settings)


def attach_align_device_hook_on_blocks(
    module: nn.Module,
    execution_device: Device | Mapping[str, Device] | None = None,
    offload: bool | Mapping[str, bool] = False,
    weights_map: Mapping[str, Any] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedParams | None = None,
) -> None:
    """Add hooks block by block, with a device and offloading per block; outputs return to the input's device.

    Args:
        module: The model.
        execution_device: One device, or one for each block by dotted name (``""`` for the rest).
        offload: Whether to offload weights to ``weights_map``, for all blocks or for each.
        weights_map: Stored weights by full dotted name, on the CPU or on disk, of the same shapes as the model's.
        offload_buffers: Offload buffers too.
        module_name: The dotted name of ``module``.
        skip_keys: Keyword arguments that are not moved.
        preload_module_classes: Names of classes whose submodules are loaded together with them.
        tied_params_map: As for `AlignDevicesHook`.
    """
    devices = execution_device if isinstance(execution_device, Mapping) else {module_name: execution_device}
    offloads = offload if isinstance(offload, Mapping) else dict.fromkeys(devices, bool(offload))
    settings = _settings_of(weights_map, offload_buffers, skip_keys, preload_module_classes, tied_params_map)
    attach_blocks(module, module_name, devices, offloads, settings)


def attach_blocks(
    module: nn.Module,
    name: str,
    devices: Mapping[str, Device | None],
    offloads: Mapping[str, bool],
    settings: HookSettings,
) -> None:
    """Add hooks block by block, as `attach_align_device_hook_on_blocks` does."""
    attach(module, name, devices, offloads, settings)
    outer = AlignDevicesHook(
        devices.get(name), io_same_device=True, skip_keys=settings.skip_keys, settings=settings,
        surrounds_offloaded=any(offloads.values()),
    )  # fmt: skip
    # The outermost hook, so that it moves the output last.
    add_hook_to_module(module, outer, append=bool(hooks_of(module)))


def _settings_of(
    weights: Mapping[str, Any] | None,
    offload_buffers: bool,
    skip_keys: str | Sequence[str] | None,
    preload: Sequence[str] | None,
    tied_params_map: TiedParams | None,
) -> HookSettings:
    """Return the settings for weights that belong to the caller."""
    if isinstance(weights, OffloadedWeightsLoader):
        weights = weights.replaced(weights.state_dict, weights.index)  # so that no write is shared
    preloaded = frozenset(preload or ())
    return HookSettings(
        weights, offload_buffers, skip_keys, preloaded, tied_params_map, owns_weights=weights is None
    )


def attach(
    module: nn.Module,
    name: str,
    devices: Mapping[str, Device | None],
    offloads: Mapping[str, bool],
    settings: HookSettings,
) -> None:
    """Add hooks to ``module`` and its submodules.

    Args:
        module: The module to start from.
        name: Its dotted name in the model.
        devices: Devices by dotted name; an entry applies to all submodules without an entry.
        offloads: Whether to offload, in the same form.
        settings: Settings of the hooks.

    Raises:
        StateError: If a scripted module is to be offloaded; nothing is changed then.
    """
    first = name if name in devices else ""
    for part, hook in list(_hooks_for(module, name, devices, offloads, settings, first, set())):
        if not hook.offload:
            _restore(part, hook.execution_device)
        add_hook_to_module(part, hook, append=bool(hooks_of(part)))
    replaced = settings.replaced
    check_aliases(
        module, {key for (key, _), (old, new) in replaced.items() if old.is_meta and new is not old}
    )
    replaced.clear()


def _hooks_for(
    module: nn.Module,
    name: str,
    devices: Mapping[str, Device | None],
    offloads: Mapping[str, bool],
    settings: HookSettings,
    entry: str,
    seen: set[int],
) -> Iterator[tuple[nn.Module, AlignDevicesHook]]:
    """Yield the modules that need a hook, each with its hook; ``entry`` is the nearest one above in ``devices``."""
    if id(module) in seen:
        return
    seen.add(id(module))
    entry = name if name in devices else entry
    device, offload = devices.get(entry), offloads.get(entry, False)
    if isinstance(module, torch.jit.ScriptModule) and offload:
        _refuse_scripted(module, name)
    prefix = f"{name}." if name else ""
    is_preloaded = (
        offload
        and type(module).__name__ in settings.preload
        and not any(key != name and key.startswith(prefix) for key in devices)
    )
    has_align_hook = any(isinstance(hook, AlignDevicesHook) for hook in hooks_of(module))
    if is_preloaded or (_has_tensors(module) and not has_align_hook):
        weights = settings.weights
        if weights is not None and name:
            weights = PrefixedDataset(weights, prefix)
        yield module, AlignDevicesHook(
            device, offload, weights_map=weights, offload_buffers=settings.offload_buffers,
            place_submodules=is_preloaded, skip_keys=settings.skip_keys, tied_params_map=settings.tied_params_map,
            module_name=name, settings=settings,
        )  # fmt: skip
    if is_preloaded:
        return
    for child_name, child in module.named_children():
        yield from _hooks_for(child, prefix + child_name, devices, offloads, settings, entry, seen)


def _restore(module: nn.Module, device: Device | None) -> None:
    """Restore weights that an earlier call offloaded, in a module that is not to be offloaded now."""
    target = torch.device("cpu" if device is None else device)
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        weight = weight_of(tensor)
        if tensor is not None and weight is not None:
            setattr(module, name, weight.resident(tensor, target))


def _has_tensors(module: nn.Module) -> bool:
    return any(t is not None for t in (*module._parameters.values(), *module._buffers.values()))


def _refuse_scripted(module: nn.Module, name: str) -> None:
    parameters = [inner for inner, _ in module.named_parameters()]
    if parameters:
        raise StateError(
            f"`{name}.{parameters[0]}` belongs to a scripted module, whose weights hooks cannot load. Do not offload "
            f"`{name}` in `device_map`, or use the module before `torch.jit.script`."
        )
