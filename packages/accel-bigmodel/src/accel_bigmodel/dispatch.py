"""Dispatch models over devices, memory and disk, from memory or from a checkpoint."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel_bigmodel.dtypes import as_torch_dtype
from accel_bigmodel.hooks.align import AlignDevicesHook, HookSettings
from accel_bigmodel.hooks.base import add_hook_to_module, hooks_of, remove_hook_from_submodules
from accel_bigmodel.hooks.blocks import attach_blocks
from accel_bigmodel.hooks.cpu_offload import CpuOffload, UserCpuOffloadHook
from accel_bigmodel.loading.checkpoints import load_checkpoint_in_model
from accel_bigmodel.loading.loader import LoadOptions, holds_dtensors, load_weights
from accel_bigmodel.offload.placeholders import weight_of
from accel_bigmodel.offload.prefetch import Prefetcher
from accel_bigmodel.offload.state import has_offloaded_params
from accel_bigmodel.offload.store import offloaded_weights
from accel_bigmodel.planning.allocation import device_map_of_mode
from accel_bigmodel.planning.device_maps import (
    DeviceMap,
    check_device_map,
    check_tied_parameters_on_same_device,
)
from accel_bigmodel.planning.max_memory import MaxMemory
from accel_bigmodel.ties import remember_ties
from accel_ops.named_tensors import named_tensors
from accel_state.devices.vendors import known_vendors
from accel_state.errors import ConfigError, StateError
from accel_state.user_warnings import warn_user


def cpu_offload(
    model: nn.Module,
    execution_device: torch.device | str | int | None = None,
    offload_buffers: bool = False,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    *,
    prefetch: bool = True,
) -> nn.Module:
    """Keep all parameters of ``model`` in CPU memory, and load each module's onto a device for its forward pass.

        cpu_offload(model, execution_device=0)
        model(inputs)

    Args:
        model: Changed in place and returned.
        execution_device: The device that runs it. Default: the device of its first parameter.
        offload_buffers: Offload buffers too.
        state_dict: Weights by name, of the model's shapes, on the CPU. Default: the model's weights, moved to the CPU.
        preload_module_classes: Names of classes whose submodules are loaded together with them.
        prefetch: Load the next module's weights while one computes.
    """
    _remove_hooks(model)
    device = _execution_device(model, execution_device)
    weights: Mapping[str, Any] | None = state_dict
    if weights is None:
        weights = offloaded_weights(named_tensors(model), {"": "cpu"})
    settings = HookSettings(
        weights, offload_buffers, preload=frozenset(preload_module_classes or ()),
        owns_weights=state_dict is None, prefetcher=Prefetcher() if prefetch else None,
    )  # fmt: skip
    attach_blocks(model, "", {"": device}, {"": True}, settings)
    return model


def cpu_offload_with_hook(
    model: nn.Module,
    execution_device: int | str | torch.device | None = None,
    prev_module_hook: UserCpuOffloadHook | None = None,
) -> tuple[nn.Module, UserCpuOffloadHook]:
    """Keep a model on the CPU until it is called; it then stays on its device until the hook offloads it.

        encoder, encoder_hook = cpu_offload_with_hook(encoder, 0)
        decoder, decoder_hook = cpu_offload_with_hook(decoder, 0, encoder_hook)  # its call offloads the encoder
        output = decoder(encoder(inputs))
        decoder_hook.offload()

    Args:
        model: Changed in place.
        execution_device: The device that runs it. Default: this process's accelerator, else the CPU.
        prev_module_hook: The hook of the previous model in a pipeline, which is offloaded when this one is called.

    Returns:
        The model, and the hook with ``offload()`` and ``remove()``.
    """
    hook = CpuOffload(execution_device=execution_device, prev_module_hook=prev_module_hook)
    add_hook_to_module(model, hook, append=True)
    return model, UserCpuOffloadHook(model, hook)


def disk_offload(
    model: nn.Module,
    offload_dir: str | os.PathLike[str],
    execution_device: torch.device | str | int | None = None,
    offload_buffers: bool = False,
    preload_module_classes: Sequence[str] | None = None,
    *,
    prefetch: bool = True,
) -> nn.Module:
    """Keep all parameters of ``model`` in a folder, and load each module's onto a device for its forward pass.

        disk_offload(model, "offload", execution_device=0)

    Args:
        model: Changed in place and returned. Its weights are written to the folder, unless it is on the meta device:
            then the folder must contain them already.
        offload_dir: Folder; created if missing.
        execution_device: The device that runs it. Default: the device of its first parameter, the CPU for a skeleton.
        offload_buffers: Offload buffers too.
        preload_module_classes: Names of classes whose submodules are loaded together with them.
        prefetch: Load the next module's weights while one computes.
    """
    _remove_hooks(model)
    device = _execution_device(model, execution_device)
    is_skeleton = any(parameter.is_meta and weight_of(parameter) is None for parameter in model.parameters())
    weights = offloaded_weights(
        named_tensors(model), {"": "disk"}, state_dict={} if is_skeleton else None, folder=offload_dir
    )
    settings = HookSettings(
        weights, offload_buffers, preload=frozenset(preload_module_classes or ()),
        owns_weights=True, prefetcher=Prefetcher() if prefetch else None,
    )  # fmt: skip
    attach_blocks(model, "", {"": device}, {"": True}, settings)
    return model


def dispatch_model(
    model: nn.Module,
    device_map: DeviceMap,
    main_device: torch.device | str | int | None = None,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    offload_dir: str | os.PathLike[str] | None = None,
    offload_index: Mapping[str, Any] | None = None,
    offload_buffers: bool = False,
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    force_hooks: bool = False,
    *,
    prefetch: bool = True,
) -> nn.Module:
    """Move every part of ``model`` to its device in ``device_map``, and make the model run there.

        dispatch_model(model, {"embed": 0, "blocks": 0, "head": "cpu"})
        model(inputs)

    The map is stored as ``model.hf_device_map``. Offloaded weights appear as tensors on the meta device; computing
    gradients for them raises, because they would be lost.

    Args:
        model: Changed in place and returned.
        device_map: A device, ``"cpu"`` or ``"disk"`` for every part.
        main_device: Runs the offloaded modules. Default: the first device of the map that is neither ``"cpu"`` nor
            ``"disk"``, else the CPU, which then keeps the modules on ``"cpu"``.
        state_dict: Weights of the parts on the CPU, by name, of the model's shapes. Default: the model's weights.
        offload_dir: Folder for parts on disk; they are written to it unless ``offload_index`` is given.
        offload_index: As for `OffloadedWeightsLoader`.
        offload_buffers: Offload buffers too.
        skip_keys: Keyword arguments (such as caches) that are never moved.
        preload_module_classes: Names of classes whose submodules are loaded together with them.
        force_hooks: Add hooks even if everything is on one device.
        prefetch: Load the next module's weights while one computes.

    Raises:
        ConfigError: If the map does not fit the model, or there is no folder for weights on disk.
    """
    _remove_hooks(model)
    check_device_map(model, device_map)
    named = [device for device in device_map.values() if str(device) not in ("cpu", "disk")]
    main = torch.device((named or ["cpu"])[0] if main_device is None else main_device)
    offloaded_devices = ("disk",) if main.type in ("cpu", "mps") else ("cpu", "disk")
    offloaded = {name for name, device in device_map.items() if str(device) in offloaded_devices}
    devices = {name: main if str(d) in ("cpu", "disk") else torch.device(d) for name, d in device_map.items()}
    has_placeholders = any(weight_of(parameter) is not None for parameter in model.parameters())
    if not offloaded and len(set(devices.values())) == 1 and not force_hooks and not has_placeholders:
        model.to(main)
    else:
        tensors = named_tensors(model)
        single = [name for one in tensors for name in one.names if name in offloaded and one.tensor.is_meta]
        if single:
            raise ConfigError(
                f"`device_map` puts the tensor `{single[0]}` on `{device_map[single[0]]}`, which only modules support. "
                "Map it to the device that runs its module, or the module to `disk`."
            )
        tied = [named for named in tensors if named.is_parameter and len(named.names) > 1]
        check_tied_parameters_on_same_device([named.names for named in tied], device_map)
        weights = None
        if offloaded:
            weights = offloaded_weights(
                tensors, device_map, state_dict=state_dict, folder=offload_dir, index=offload_index,
                offloaded_devices=offloaded_devices,
            )  # fmt: skip
        stored = {} if weights is None else weights.state_dict
        tied_names = [name for named in tied for name in named.names if name in stored]
        settings = HookSettings(
            weights, offload_buffers, skip_keys, frozenset(preload_module_classes or ()),
            tied_params_map={stored[name].data_ptr(): {} for name in tied_names},
            owns_weights=state_dict is None, prefetcher=Prefetcher() if prefetch else None,
        )  # fmt: skip
        offloads = {name: name in offloaded for name in ["", *devices]}
        attach_blocks(model, "", {"": main, **devices}, offloads, settings)
        guard_moves(model)
        if tied:
            remember_ties(model, tied)
    model.hf_device_map = dict(device_map)  # type: ignore[assignment]
    _hook_encoder(model)
    return model


def _hook_encoder(model: nn.Module) -> None:
    """Add a hook to the encoder of a transformers encoder-decoder model.

    Otherwise ``generate`` imports `accelerate`, which may not be installed, to add one itself, if the model has a
    ``hf_device_map`` (transformers 5.23, ``generation/utils.py``).
    """
    find: Any = getattr(model, "get_encoder", None)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and callable(find):
        encoder = find()
        if isinstance(encoder, nn.Module) and not hooks_of(encoder):
            add_hook_to_module(encoder, AlignDevicesHook(io_same_device=True))


def _remove_hooks(model: nn.Module) -> None:
    """Remove earlier hooks; weights that were on the meta device before keep their placeholders, for the new hooks."""
    for module in model.modules():
        for hook in hooks_of(module):
            if isinstance(hook, AlignDevicesHook):
                hook.detach_hook(module, keeps_placeholders=True)
    remove_hook_from_submodules(model)


def _execution_device(model: nn.Module, given: torch.device | str | int | None) -> torch.device:
    if given is not None:
        return torch.device(given)
    first = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return torch.device("cpu") if first.type == "meta" else first


def load_checkpoint_and_dispatch(
    model: nn.Module,
    checkpoint: str | os.PathLike[str],
    device_map: str | Mapping[str, int | str | torch.device] | None = None,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    offload_buffers: bool = False,
    dtype: str | torch.dtype | None = None,
    offload_state_dict: bool | None = None,
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    force_hooks: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
    *,
    mmap: bool = False,
    prefetch: bool = True,
) -> nn.Module:
    """Load a checkpoint into ``model``, distribute it over the devices, and make it ready to run.

        with init_empty_weights():
            model = build_model()
        model = load_checkpoint_and_dispatch(model, "weights", device_map="auto")

    Offloaded weights are read from their safetensors files, which must not be moved. Weights from other files are
    written to ``offload_folder``. Weights in another ``dtype`` are, too, or else are converted at each use. Several
    processes may call it independently, unless ``broadcast_from_rank0`` is set or the model has DTensors.

    Args:
        model: Usually a skeleton from `init_empty_weights`.
        checkpoint: A weight file, an index (``.json``), or a folder with one of them.
        device_map: A map, or how to compute one: ``"auto"`` and ``"balanced"`` distribute evenly, ``"balanced_low_0"``
            keeps the first accelerator free, ``"sequential"`` fills one after the other. ``None`` only loads.
        max_memory: As for `get_max_memory`.
        no_split_module_classes: Names of classes that stay on one device.
        offload_folder: For weights on disk that have no safetensors file, or that ``dtype`` converts.
        offload_buffers: Offload buffers too.
        dtype: The dtype of floating-point weights.
        offload_state_dict: No effect: weights are loaded one at a time anyway.
        skip_keys: Keyword arguments (such as caches) that are never moved.
        preload_module_classes: Names of classes whose submodules are loaded together with them.
        force_hooks: Add hooks even if everything is on one device.
        strict: As for `load_checkpoint_in_model`, like the next three arguments.
        full_state_dict: See `load_checkpoint_in_model`.
        broadcast_from_rank0: See `load_checkpoint_in_model`; all processes must call this.
        mmap: See `load_checkpoint_in_model`.
        prefetch: Load the next module's offloaded weights while one computes.

    Raises:
        UnknownNameError: If ``device_map`` is an unknown mode.
        CheckpointError: If the checkpoint does not fit.
    """
    placed = device_map
    if isinstance(placed, str):
        placed = device_map_of_mode(
            placed, model, max_memory, no_split_module_classes, dtype=dtype, offload_buffers=offload_buffers
        )
    if placed is None or broadcast_from_rank0 or holds_dtensors(model):
        load_checkpoint_in_model(
            model, checkpoint, dtype=dtype, strict=strict, full_state_dict=full_state_dict,
            broadcast_from_rank0=broadcast_from_rank0, mmap=mmap,
        )  # fmt: skip
        index: dict[str, Any] = {}
    else:
        options = LoadOptions(
            placed, None if dtype is None else as_torch_dtype(dtype),
            folder=None if offload_folder is None else Path(offload_folder),
            offload_buffers=offload_buffers, may_map=mmap,
        )  # fmt: skip
        index = load_weights(model, checkpoint, options, strict=strict)
    if placed is None:
        return model
    return dispatch_model(
        model, placed, offload_dir=offload_folder, offload_index=index or None, offload_buffers=offload_buffers,
        skip_keys=skip_keys, preload_module_classes=preload_module_classes, force_hooks=force_hooks, prefetch=prefetch,
    )  # fmt: skip


def guard_moves(model: nn.Module) -> None:
    """Make ``model.to`` and similar methods warn while the model has hooks, and raise if weights are offloaded."""
    for name in _moves():
        if hasattr(nn.Module, name):
            guarded: Any = functools.partial(_guarded_move, model, name)
            guarded.__name__ = name
            setattr(model, name, guarded)


@functools.cache
def _moves() -> tuple[str, ...]:
    """Return the names of methods that may exist and move a module."""
    return ("to", "mtia", "ipu", *(vendor.name for vendor in known_vendors() if vendor.name != "cpu"))


def _guarded_move(model: nn.Module, name: str, *args: Any, **kwargs: Any) -> Any:
    is_move = name != "to" or torch._C._nn._parse_to(*args, **kwargs)[0] is not None  # or a conversion
    if is_move and any(has_offloaded_params(module) for module in model.modules()):
        raise StateError(
            "You can't move a model that has some modules offloaded to cpu or disk. Remove the hooks first with "
            "`remove_hook_from_submodules`, or dispatch it with another `device_map`."
        )
    if is_move and any(hooks_of(module) for module in model.modules()):
        warn_user(
            "You shouldn't move a model that is dispatched using accelerate hooks: its parts no longer match "
            "`hf_device_map`, and are moved back in the next forward pass. "
            "Do not call it after `device_map` was applied.",
            main_process_only=False,
        )
    return getattr(type(model), name)(model, *args, **kwargs)
