"""The hook that puts the weights and inputs of a module on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from accel_bigmodel.hooks.base import ModelHook
from accel_bigmodel.offload.placeholders import forwards, make_plain, placeholder_for, set_values, weight_of
from accel_bigmodel.offload.residency import Prefetcher, Residency, Slot
from accel_bigmodel.offload.store import in_memory, is_shared
from accel_bigmodel.offload.weight import OffloadedWeight
from accel_bigmodel.tensors import TiedParams, set_module_tensor_to_device
from accel_ops.nested.describe import find_device
from accel_ops.nested.move import send_to_device
from accel_state.errors import StateError

Placeholders: TypeAlias = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""The weight and its placeholder, by the identity of the weight."""


@dataclass(frozen=True, slots=True, eq=False)
class HookSettings:
    """What the hooks of one model have in common.

    Args:
        weights: Stored weights by full dotted name.
        offload_buffers: Offload buffers too.
        skip_keys: Keyword arguments that are not moved.
        preload: Names of classes whose submodules are loaded together with them.
        tied_params_map: As for `AlignDevicesHook`.
        owns_weights: The stored weights belong to the model, so that they may be used and written to without a copy.
        prefetcher: Prefetches the weights of the next module.
        placeholders: The placeholders made while hooks are being attached; emptied afterwards.
    """

    weights: Mapping[str, Any] | None = None
    offload_buffers: bool = False
    skip_keys: str | Sequence[str] | None = None
    preload: frozenset[str] = frozenset()
    tied_params_map: TiedParams | None = None
    owns_weights: bool = False
    prefetcher: Prefetcher | None = None
    placeholders: Placeholders = field(default_factory=dict)


class AlignDevicesHook(ModelHook):
    """Moves inputs to the device of a module, and loads the module's offloaded weights for its forward pass.

    Args:
        execution_device: The device on which the module runs; by default that of its inputs.
        offload: Offload the weights between forward passes.
        io_same_device: Move the output to the device of the input.
        weights_map: The stored weights, by name in the module; by default a copy on the CPU.
        offload_buffers: Offload buffers too.
        place_submodules: Handle the weights of all submodules, not only the module's own.
        skip_keys: Keyword arguments that are not moved.
        tied_params_map: Tied weights already moved to a device, by address.
        module_name: The dotted name of the module, for messages.
        settings: What it has in common with the other hooks of the model.
        surrounds_offloaded: The module has submodules with offloaded weights, and may use these in its forward pass. If
            its output is on the meta device, which means that a weight without values was used, this raises.
    """

    def __init__(
        self,
        execution_device: int | str | torch.device | None = None,
        offload: bool = False,
        io_same_device: bool = False,
        weights_map: Mapping[str, Any] | None = None,
        offload_buffers: bool = False,
        place_submodules: bool = False,
        skip_keys: str | Sequence[str] | None = None,
        tied_params_map: TiedParams | None = None,
        *,
        module_name: str = "",
        settings: HookSettings | None = None,
        surrounds_offloaded: bool = False,
    ) -> None:
        self.execution_device = execution_device
        self.offload = offload
        self.io_same_device = io_same_device
        self._weights_map = weights_map
        self.offload_buffers = offload_buffers
        self.place_submodules = place_submodules
        self.skip_keys = skip_keys
        self.tied_params_map = tied_params_map
        self.input_device: torch.device | None = None
        self.original_devices: dict[str, torch.device] = {}
        """The device of each weight before it was offloaded, by name; libraries read it."""
        self.residency = Residency([])
        self.keeps_placeholders = False  # when detached, of weights that were on the meta device
        self._slots: dict[str, Slot] = {}
        self._has_offloaded = False
        self._module_name = module_name
        self._settings = HookSettings() if settings is None else settings
        self._surrounds_offloaded = surrounds_offloaded
        self._handles: list[RemovableHandle] = []

    def __repr__(self) -> str:
        return (
            f"AlignDevicesHook(execution_device={self.execution_device}, offload={self.offload}, "
            f"io_same_device={self.io_same_device}, offload_buffers={self.offload_buffers}, "
            f"place_submodules={self.place_submodules}, skip_keys={self.skip_keys!r})"
        )

    @property
    def weights_map(self) -> Mapping[str, Any] | None:
        """The stored weights, by name in the module; the current values as soon as one of them has changed.

        An assigned mapping, which must have all of them, replaces the values.
        """
        if not any(slot.weight.is_changed for slot in self._slots.values()):
            return self._weights_map
        return {name: slot.weight.shared_values() for name, slot in self._slots.items()}

    @weights_map.setter
    def weights_map(self, weights: Mapping[str, Any] | None) -> None:
        given = {} if weights is None else weights
        if missing := [f"`{name}`" for name in self._slots if name not in given]:
            raise StateError(
                f"`weights_map` lacks {', '.join(missing)}. Give the values of all offloaded weights of the module."
            )
        for name, slot in self._slots.items():
            set_values(slot.placeholder, slot.weight, given[name])
        self._weights_map = weights

    def init_hook(self, module: nn.Module) -> nn.Module:
        if self.execution_device is not None and torch.device(self.execution_device).type == "meta":
            self.tied_params_map = None
        if self.offload:
            self._offload(module)
        elif self.execution_device is not None:
            for place in _places(module, recurse=self.place_submodules):
                self._place(place)
        return module

    def attached(self, module: nn.Module) -> None:
        if self.offload and not self._has_offloaded:
            self._offload(module)

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if torch.compiler.is_compiling():
            # The module imports torch's compiler, which is loaded by now.
            from accel_bigmodel.hooks.outside_graphs import run_outside_graph

            args, kwargs = run_outside_graph(self.prepare, module, args, kwargs)
            return args, kwargs
        return self.prepare(module, args, kwargs)

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        if torch.compiler.is_compiling():
            from accel_bigmodel.hooks.outside_graphs import run_outside_graph

            return run_outside_graph(self.finish, module, output)
        return self.finish(module, output)

    def prepare(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Load weights and move inputs before the forward pass, and return its arguments."""
        if self.io_same_device:
            self.input_device = find_device([args, kwargs])
        if self._surrounds_offloaded:
            forwards.enter()
        if self.offload:
            self.residency.onload()
            if self._settings.prefetcher is not None and self.residency.slots:
                self._settings.prefetcher.block_started(self.residency)
        if self.execution_device is None:
            return args, kwargs
        try:
            args = send_to_device(args, self.execution_device)
            kwargs = send_to_device(kwargs, self.execution_device, skip_keys=self.skip_keys)
        except BaseException:
            self.after_error(module)
            raise
        return args, kwargs

    def finish(self, module: nn.Module, output: Any) -> Any:
        """Offload weights after the forward pass, and return the output."""
        self.after_error(module)
        if self.io_same_device and self.input_device is not None:
            if self._surrounds_offloaded and self.input_device.type != "meta":
                _refuse_empty(module, output)
            output = send_to_device(output, self.input_device, skip_keys=self.skip_keys)
        return output

    def after_error(self, module: nn.Module) -> None:
        if self.offload:
            self.residency.offload()
        if self._surrounds_offloaded:
            forwards.leave()

    def detach_hook(self, module: nn.Module) -> nn.Module:
        for slot in self._slots.values():
            if self.offload and slot.original_device.type != "meta":
                slot.restore()
            elif not self.keeps_placeholders:
                make_plain(slot.placeholder)
        self._slots, self.residency, self._has_offloaded = {}, Residency([]), False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        return module

    def _place(self, place: _Place) -> None:
        """Move a weight that is not offloaded to the execution device."""
        assert self.execution_device is not None
        if weight_of(place.tensor) is None:
            set_module_tensor_to_device(
                place.owner, place.name, self.execution_device, tied_params_map=self.tied_params_map,
                clear_cache=False,
            )  # fmt: skip

    def _offload(self, module: nn.Module) -> None:
        self._slots = self._offload_weights_of(module)
        self.residency = Residency(list(self._slots.values()))
        self._handles = self.residency.follow_state_dicts(module)
        self._has_offloaded = True

    def _offload_weights_of(self, module: nn.Module) -> dict[str, Slot]:
        kept: dict[str, torch.Tensor] = {}
        known = self._settings.placeholders
        slots: dict[str, Slot] = {}
        places = _places(module, recurse=self.place_submodules)
        if self.original_devices and not any(place.tensor.is_meta for place in places):
            self._weights_map, self.original_devices = None, {}  # it has the weights of another module
        for place in places:
            if place.is_buffer and (not self.offload_buffers or not _is_persistent(place)):
                if self.execution_device is not None and not place.tensor.is_meta:
                    self._place(place)
                continue
            if id(place.tensor) not in known:
                known[id(place.tensor)] = (place.tensor, self._placeholder(place, kept))
            placeholder = known[id(place.tensor)][1]
            slots[place.full_name] = Slot(place.owner, place.name, placeholder, place.tensor.device)
            self.original_devices[place.full_name] = place.tensor.device
            setattr(place.owner, place.name, placeholder)
        if self._weights_map is None:
            self._weights_map = kept
        return slots

    def _placeholder(self, place: _Place, kept: dict[str, torch.Tensor]) -> torch.Tensor:
        tensor = place.tensor
        device = torch.device("cpu" if self.execution_device is None else self.execution_device)
        weight = weight_of(tensor)
        if weight is not None:  # it was offloaded before
            weight.use_on(device)
            return tensor
        weights = self._weights_map
        if weights is None:
            weights = kept
            if not tensor.is_meta:
                kept[place.full_name] = in_memory(tensor)
        name = f"{self._module_name}.{place.full_name}".lstrip(".")
        if place.full_name not in weights:
            missing = "it is on the meta device, and " if tensor.is_meta else ""
            raise StateError(
                f"`{name}` cannot be offloaded: {missing}the given weights do not include it. "
                "Load the checkpoint first, or give the state dict or folder that has it."
            )
        is_owned = weights is kept or self._settings.owns_weights
        weight = OffloadedWeight(
            weights, place.full_name, name=name, device=device, dtype=tensor.dtype,
            copy_on_write=not is_owned and is_shared(weights, place.full_name),
        )  # fmt: skip
        return placeholder_for(tensor, weight, place.owner)


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor of a module, and where it is held."""

    full_name: str
    owner: nn.Module
    name: str
    tensor: torch.Tensor
    is_buffer: bool


def _places(module: nn.Module, *, recurse: bool) -> list[_Place]:
    modules = module.named_modules() if recurse else [("", module)]
    return [
        _Place(f"{prefix}.{name}" if prefix else name, owner, name, tensor, is_buffer)
        for prefix, owner in modules
        for members, is_buffer in ((owner._parameters, False), (owner._buffers, True))
        for name, tensor in members.items()
        if tensor is not None
    ]


def _is_persistent(place: _Place) -> bool:
    """Whether checkpoints and folders have it: a buffer that is not persistent stays in memory."""
    return place.name not in place.owner._non_persistent_buffers_set


def _refuse_empty(module: nn.Module, output: Any) -> None:
    device = find_device(output)
    if device is not None and device.type == "meta":
        raise StateError(
            f"`{type(module).__name__}` returned a tensor without values, because it used a weight that was never "
            "loaded. Load it, or make it a parameter of a module."
        )
