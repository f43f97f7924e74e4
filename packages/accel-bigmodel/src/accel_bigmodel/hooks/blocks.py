"""Hooks on all modules of a model that need one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_bigmodel.aliases import repair_aliases
from accel_bigmodel.hooks.align import AlignDevicesHook, Member
from accel_bigmodel.hooks.attaching import add_hook_to_module, hooks_of
from accel_bigmodel.offload.placeholders import origin_of
from accel_bigmodel.offload.weights_map import PrefixedDataset
from accel_bigmodel.placing import TiedParams
from accel_state.errors import StateError

Device = int | str | torch.device

# Modules of torch that hand the weights of what is inside to a fused function, and choose it by what these are.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def attach_execution_device_hook(
    module: nn.Module,
    execution_device: Device,
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedParams | None = None,
) -> None:
    """Make every module inside that has weights and no hook move its inputs to ``execution_device``.

    Args:
        module: Its weights must be on that device already, or be moved there by their hooks.
        execution_device: Where the modules run.
        skip_keys: Keyword arguments that are not moved.
        preload_module_classes: Names of classes whose insides need no hook of their own.
        tied_params_map: As for `AlignDevicesHook`.
    """
    if not hooks_of(module) and _own_tensors(module):
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
    """Add an `AlignDevicesHook` to every module inside that has weights of its own.

    Args:
        module: Where to begin.
        execution_device: Where the modules run.
        offload: Keep their weights in ``weights_map`` between forwards.
        weights_map: By dotted names from the model down.
        offload_buffers: Offload buffers too.
        module_name: The dotted name of ``module`` in the model.
        skip_keys: Keyword arguments that are not moved.
        preload_module_classes: Names of classes whose whole inside is brought at once.
        tied_params_map: As for `AlignDevicesHook`.
    """
    attacher = Attacher(
        weights_map, offload_buffers=offload_buffers, skip_keys=skip_keys,
        preload=preload_module_classes, tied_params_map=tied_params_map,
    )  # fmt: skip
    attacher.attach(module, module_name, execution_device, offload=offload)
    attacher.repair(module)


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
    """Add hooks block by block: each runs on its own device, offloaded or not; outputs return to the input's device.

    Args:
        module: The model.
        execution_device: One device, or one for each block by dotted name (``""`` for the rest).
        offload: Whether a block's weights are kept in ``weights_map``; one answer, or one for each block.
        weights_map: By dotted names from the model down.
        offload_buffers: Offload buffers too.
        module_name: The dotted name of ``module``.
        skip_keys: Keyword arguments that are not moved.
        preload_module_classes: Names of classes whose whole inside is brought at once.
        tied_params_map: As for `AlignDevicesHook`.
    """
    devices = execution_device if isinstance(execution_device, Mapping) else {module_name: execution_device}
    offloads = offload if isinstance(offload, Mapping) else dict.fromkeys(devices, bool(offload))
    attacher = Attacher(
        weights_map, offload_buffers=offload_buffers, skip_keys=skip_keys,
        preload=preload_module_classes, tied_params_map=tied_params_map,
    )  # fmt: skip
    attacher.attach_blocks(module, module_name, devices, offloads)
    attacher.repair(module)
    outer = AlignDevicesHook(devices.get(module_name), io_same_device=True, skip_keys=skip_keys)
    outer.refuses_empty_output = any(offloads.values())
    first = hooks_of(module)
    # The outermost hook of all: what comes back from the others is moved last.
    add_hook_to_module(module, outer, append=bool(first))


class Attacher:
    """Adds hooks to the modules of one model."""

    def __init__(
        self,
        weights_map: Mapping[str, Any] | None,
        *,
        offload_buffers: bool,
        skip_keys: str | Sequence[str] | None,
        preload: Sequence[str] | None,
        tied_params_map: TiedParams | None,
    ) -> None:
        self._weights = weights_map
        self._offload_buffers = offload_buffers
        self._skip_keys = skip_keys
        self._preload = frozenset(preload or ())
        self._tied_params_map = tied_params_map
        self._ties: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attach(self, module: nn.Module, name: str, device: Device | None, *, offload: bool) -> None:
        """Add a hook to ``module`` and everything inside where there are weights."""
        self._attach(module, name, {"": device}, {"": offload}, "")

    def repair(self, module: nn.Module) -> None:
        """Put the placeholders into plain attributes, too, that held a weight which has no values."""
        repair_aliases(module, {key: new for key, (old, new) in self._ties.items() if old.is_meta})

    def attach_blocks(
        self,
        module: nn.Module,
        name: str,
        devices: Mapping[str, Device | None],
        offloads: Mapping[str, bool],
    ) -> None:
        """Add hooks as the tables say, each entry for what is inside it and has no entry of its own."""
        self._attach(module, name, devices, offloads, name)

    def _attach(
        self,
        module: nn.Module,
        name: str,
        devices: Mapping[str, Device | None],
        offloads: Mapping[str, bool],
        entry: str,
    ) -> None:
        entry = name if name in devices else entry
        device, offload = devices.get(entry), offloads.get(entry, False)
        if isinstance(module, torch.jit.ScriptModule):
            _refuse_scripted(module, name, offload=offload)
        inner = any(key != name and key.startswith(f"{name}." if name else "") for key in devices)
        whole = (
            offload and not inner and (type(module).__name__ in self._preload or isinstance(module, _FUSED))
        )
        if whole or (_own_tensors(module) and not _has_align_hook(module)):
            hook = AlignDevicesHook(
                device, offload, weights_map=self._part(name), offload_buffers=self._offload_buffers,
                place_submodules=whole, skip_keys=self._skip_keys, tied_params_map=self._tied_params_map,
            )  # fmt: skip
            hook.ties, hook.module_name = self._ties, name
            add_hook_to_module(module, hook, append=bool(hooks_of(module)))
        if whole:
            return
        for child_name, child in module.named_children():
            self._attach(child, f"{name}.{child_name}" if name else child_name, devices, offloads, entry)
        if isinstance(module, nn.TransformerEncoder):
            self._hold_first_layer(module, device)

    def _part(self, name: str) -> Mapping[str, Any] | None:
        if self._weights is None or not name:
            return self._weights
        return PrefixedDataset(self._weights, f"{name}.")

    @staticmethod
    def _hold_first_layer(module: nn.TransformerEncoder, device: Device | None) -> None:
        """`nn.TransformerEncoder` chooses how to treat padding by the weights of its first layer."""
        hook = AlignDevicesHook(device)
        hook.members = [
            Member(owner, name, tensor)
            for owner in module.layers[0].modules()
            for name, tensor in owner._parameters.items()
            if tensor is not None and origin_of(tensor) is not None
        ]
        if hook.members:
            hook.offload = True
            members = hook.members
            hook.execution_device = None
            add_hook_to_module(module, hook, append=bool(hooks_of(module)))
            hook.members = members


def _own_tensors(module: nn.Module) -> bool:
    return any(t is not None for t in (*module._parameters.values(), *module._buffers.values()))


def _has_align_hook(module: nn.Module) -> bool:
    return any(isinstance(hook, AlignDevicesHook) for hook in hooks_of(module))


def _refuse_scripted(module: nn.Module, name: str, *, offload: bool) -> None:
    parameters = [inner for inner, _ in module.named_parameters()]
    if offload and parameters:
        raise StateError(
            f"`{name}.{parameters[0]}` belongs to a scripted module, which reads its weights where no hook can help. "
            f"Leave `{name}` out of the offload in `device_map`, or use the module before `torch.jit.script`."
        )
