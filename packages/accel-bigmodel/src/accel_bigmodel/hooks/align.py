"""The hook that puts the weights and inputs of a module on one device."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from accel_bigmodel.hooks.base import ModelHook
from accel_bigmodel.offload.placeholders import make_plain, placeholder_for, set_values, weight_of
from accel_bigmodel.offload.prefetch import Prefetcher
from accel_bigmodel.offload.store import StoredWeight, in_memory
from accel_bigmodel.offload.weight import OffloadedWeight, forwards
from accel_bigmodel.tensors import (
    TiedParams,
    assign,
    forget_int8_values,
    is_int8,
    set_module_tensor_to_device,
)
from accel_ops.nested.describe import find_device
from accel_ops.nested.move import send_to_device
from accel_state.errors import StateError

Replacements: TypeAlias = dict[tuple[int, torch.device | None], tuple[torch.Tensor, torch.Tensor]]
"""A tensor of the model and its replacement, by its identity and the device; ``None`` for a placeholder."""


@dataclass(frozen=True, slots=True, eq=False)
class HookSettings:
    """Settings shared by the hooks of one model.

    Args:
        weights: Stored weights by full dotted name.
        offload_buffers: Offload buffers too.
        skip_keys: Keyword arguments that are not moved.
        preload: Names of classes whose submodules are loaded together with them.
        tied_params_map: As for `AlignDevicesHook`.
        owns_weights: The stored weights belong to the model, so that they may be used and written to without a copy.
        prefetcher: Prefetches the weights of the next module.
        replaced: The replacement of each tensor while hooks are added, so that ties remain; emptied afterwards.
    """

    weights: Mapping[str, Any] | None = None
    offload_buffers: bool = False
    skip_keys: str | Sequence[str] | None = None
    preload: frozenset[str] = frozenset()
    tied_params_map: TiedParams | None = None
    owns_weights: bool = False
    prefetcher: Prefetcher | None = None
    replaced: Replacements = field(default_factory=dict)


class Slot:
    """A parameter or buffer of a module that is a placeholder between forward passes.

    Args:
        owner: The module.
        name: Its name in the module.
        placeholder: The placeholder, a tensor of the weight's shape on the meta device.
    """

    def __init__(self, owner: nn.Module, name: str, placeholder: torch.Tensor) -> None:
        self.owner, self.name, self.placeholder = owner, name, placeholder
        self.weight: OffloadedWeight = vars(placeholder)["_weight"]
        self._num_uses = 0
        self._is_buffer = not isinstance(placeholder, nn.Parameter)
        self._is_int8 = is_int8(placeholder)
        self._clear()

    def fill(self) -> None:
        """Insert the live value, unless other code has replaced the placeholder: that remains."""
        self._follow_conversion()
        weight = self.weight
        with weight.lock:
            now = self._table().get(self.name)
            if now is self.placeholder or weight.is_value(now):
                assign(self.owner, self.name, weight.acquire(self.placeholder))
                self._num_uses += 1

    def empty(self) -> None:
        """End one use of the value; the last one puts the placeholder back."""
        weight = self.weight
        with weight.lock:
            if self._num_uses == 0:
                return  # other code had replaced the placeholder, so that `fill` did nothing
            self._num_uses -= 1
            now = self._table().get(self.name)
            is_value = weight.is_value(now)
            if is_value and self._is_buffer and self.owner.training:
                weight.store_live_if_changed()  # kernels update running statistics without bumping the version
            weight.release()
            if is_value and self._num_uses == 0:
                assign(self.owner, self.name, self.placeholder)
                self._clear()
            elif self._is_buffer and now is not None and not is_value:
                set_values(self.placeholder, weight, now)  # the forward replaced a buffer
                assign(self.owner, self.name, self.placeholder)

    def restore(self, device: torch.device) -> None:
        """Put the weight into the module permanently."""
        self._follow_conversion()
        if self._table().get(self.name) is self.placeholder:
            setattr(self.owner, self.name, self.weight.resident(self.placeholder, device))

    def _clear(self) -> None:
        if self._is_int8:
            forget_int8_values(self.owner)

    def _follow_conversion(self) -> None:
        """Use the new placeholder after a conversion of the module, such as ``half``, has replaced a buffer's."""
        now: Any = self._table().get(self.name)
        if now is not self.placeholder and (weight := weight_of(now)) is not None:
            self.placeholder, self.weight = now, weight

    def _table(self) -> dict[str, Any]:
        owner: Any = self.owner
        table: dict[str, Any] = owner._buffers if self._is_buffer else owner._parameters
        return table


class AlignDevicesHook(ModelHook):
    """Moves inputs to the device of a module, and loads the module's offloaded weights for its forward pass.

    Reentrant, also in several threads.

    Args:
        execution_device: The device that runs the module. Default: the device of its inputs.
        offload: Offload the weights between forward passes.
        io_same_device: Move the output to the device of the input.
        weights_map: Stored weights, by name in the module, of these shapes, in memory or on disk. Default: CPU copies.
        offload_buffers: Offload buffers too.
        place_submodules: Handle the weights of all submodules, not only the module's direct ones.
        skip_keys: Keyword arguments that are not moved.
        tied_params_map: Tied weights already moved to a device, by address.
        module_name: The dotted name of the module, for messages.
        settings: Settings shared with the other hooks of the model.
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
        self._input_devices: dict[int, torch.device | None] = {}  # of the call in each thread
        self.original_devices: dict[str, torch.device] = {}
        """The device of each weight before it was offloaded, by name; libraries read it."""
        self.slots: dict[str, Slot] = {}
        """The offloaded weights, by name in the module."""
        self.num_bytes = 0
        """The size of the offloaded weights."""
        self._module_name = module_name
        self._settings = HookSettings() if settings is None else settings
        self._is_standalone = settings is None
        self._surrounds_offloaded = surrounds_offloaded
        self._handles: list[RemovableHandle] = []

    def __repr__(self) -> str:
        return (
            f"AlignDevicesHook(execution_device={self.execution_device}, offload={self.offload}, "
            f"io_same_device={self.io_same_device}, offload_buffers={self.offload_buffers}, "
            f"place_submodules={self.place_submodules}, skip_keys={self.skip_keys!r})"
        )

    @property
    def weights(self) -> list[OffloadedWeight]:
        """The offloaded weights."""
        return [slot.weight for slot in self.slots.values()]

    @property
    def input_device(self) -> torch.device | None:
        """The device of the inputs of the forward pass that runs in this thread."""
        return self._input_devices.get(threading.get_ident())

    @property
    def weights_map(self) -> Mapping[str, Any] | None:
        """The stored weights, by name in the module; the current values after one of them has changed.

        An assigned mapping, which must have all of them, replaces the values.

        Raises:
            StateError: If an assigned mapping lacks a weight.
        """
        if not any(weight.is_changed for weight in self.weights):
            return self._weights_map
        return {name: slot.weight.shared_values() for name, slot in self.slots.items()}

    @weights_map.setter
    def weights_map(self, weights: Mapping[str, Any] | None) -> None:
        given = {} if weights is None else weights
        if missing := [f"`{name}`" for name in self.slots if name not in given]:
            raise StateError(
                f"`weights_map` lacks {', '.join(missing)}. Include the values of all offloaded weights of the module."
            )
        for name, slot in self.slots.items():
            set_values(slot.placeholder, slot.weight, given[name])
        self._weights_map = weights

    def init_hook(self, module: nn.Module) -> nn.Module:
        if self.offload:
            self._offload(module)
        elif self.execution_device is not None:
            for _, owner, name in _tensors_of(module, recurse=self.place_submodules):
                self._place(owner, name)
        return module

    def attached(self, module: nn.Module) -> None:
        if self.offload and not self._handles:
            self._offload(module)
        if self._is_standalone:
            self._settings.replaced.clear()

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if torch.compiler.is_compiling():
            # Imported here because it imports torch's compiler, which is slow; while a graph is compiled it is loaded.
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
            self._input_devices[threading.get_ident()] = _device_of((*args, *kwargs.values()))
        prefetcher = self._settings.prefetcher
        if self._surrounds_offloaded:
            forwards.enter()
            if prefetcher is not None:
                prefetcher.forward_started(_weights_in(module))
        if self.offload:
            if self.slots and prefetcher is not None:
                prefetcher.block_started(self)
            self.onload_weights()
        if self.execution_device is None:
            return args, kwargs
        try:
            args = tuple([_moved(value, self.execution_device) for value in args])
            if kwargs:
                kwargs = send_to_device(kwargs, self.execution_device, skip_keys=self.skip_keys)
        except BaseException:  # also Ctrl-C: the forward pass does not run, so that `finish` is not called
            self.after_error(module)
            raise
        return args, kwargs

    def finish(self, module: nn.Module, output: Any) -> Any:
        """Offload weights after the forward pass, and return the output.

        Raises:
            StateError: If the output is on the meta device, because the forward pass used a weight without values.
        """
        device = self._end()
        if self.slots and self._settings.prefetcher is not None:
            self._settings.prefetcher.block_finished(self)
        if device is not None:
            if self._surrounds_offloaded and device.type != "meta":
                _refuse_empty(module, output)
            output = _moved(output, device, self.skip_keys)
        return output

    def after_error(self, module: nn.Module) -> None:
        self._end()

    def _end(self) -> torch.device | None:
        """Offload weights, and return the device for the output if it is to be moved."""
        if self.offload:
            self.offload_weights()
        if self._surrounds_offloaded:
            if self._settings.prefetcher is not None:
                self._settings.prefetcher.forward_ended()
            forwards.leave()
        return self._input_devices.pop(threading.get_ident(), None)

    def onload_weights(self, *_: Any) -> None:
        """Insert the values into the module; each call, also one by a hook of torch, needs an `offload_weights`."""
        forwards.enter()
        filled: list[Slot] = []
        try:
            for slot in self.slots.values():
                slot.fill()
                filled.append(slot)
        except BaseException:  # also Ctrl-C: no `offload_weights` follows
            self._empty(filled)
            raise

    def offload_weights(self, *_: Any) -> None:
        """Undo one `onload_weights`."""
        self._empty(self.slots.values())

    def _empty(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            slot.empty()
        forwards.leave()

    def detach_hook(self, module: nn.Module, *, keeps_placeholders: bool = False) -> nn.Module:
        """Restore the weights.

        Args:
            module: The module of the hook.
            keeps_placeholders: Whether weights that were on the meta device before stay placeholders, for another hook.
        """
        for name, slot in self.slots.items():
            device = self.original_devices[name]
            if self.offload and device.type != "meta":
                slot.restore(device)
            elif not keeps_placeholders:
                make_plain(slot.placeholder)
        self.slots = {}
        for handle in self._handles:
            handle.remove()
        self._handles = []
        return module

    def _place(self, owner: nn.Module, name: str) -> None:
        """Move a weight that is not offloaded to the execution device, a tied one once."""
        tensor = getattr(owner, name)
        if self.execution_device is None or weight_of(tensor) is not None:
            return
        device = torch.device(self.execution_device)
        if tensor.device == device:
            return
        key, replaced = (id(tensor), device), self._settings.replaced
        if key in replaced:
            assign(owner, name, replaced[key][1])
            return
        set_module_tensor_to_device(
            owner, name, device, tied_params_map=self.tied_params_map, clear_cache=False
        )
        replaced[key] = (tensor, getattr(owner, name))

    def _offload(self, module: nn.Module) -> None:
        """Replace the weights by placeholders."""
        kept: dict[str, torch.Tensor] = {}
        self.slots, self.num_bytes = {}, 0
        replaced = self._settings.replaced
        tensors = [
            (full_name, owner, name, getattr(owner, name))
            for full_name, owner, name in _tensors_of(module, recurse=self.place_submodules)
        ]
        if self.original_devices and not any(tensor.is_meta for *_, tensor in tensors):
            self._weights_map, self.original_devices = None, {}  # those of another module
        for full_name, owner, name, tensor in tensors:
            is_buffer, is_persistent = name in owner._buffers, name not in owner._non_persistent_buffers_set
            if is_buffer and not (self.offload_buffers and is_persistent):
                if not tensor.is_meta:
                    self._place(owner, name)
                continue
            key = (id(tensor), None)
            if key not in replaced:
                replaced[key] = (tensor, self._placeholder(full_name, owner, tensor, kept))
            placeholder = replaced[key][1]
            self.slots[full_name] = Slot(owner, name, placeholder)
            self.original_devices[full_name] = tensor.device
            self.num_bytes += tensor.nbytes
            setattr(owner, name, placeholder)
        if self._weights_map is None:
            self._weights_map = kept
        # `load_state_dict` copies nothing into a tensor on the meta device, so it gets the values instead.
        untyped: Any = module
        self._handles = [
            untyped.register_load_state_dict_pre_hook(self.onload_weights),
            untyped.register_load_state_dict_post_hook(self.offload_weights),
        ]

    def _placeholder(
        self, full_name: str, owner: nn.Module, tensor: torch.Tensor, kept: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        device = torch.device("cpu" if self.execution_device is None else self.execution_device)
        weight = weight_of(tensor)
        if weight is not None:  # it was offloaded before
            weight.use_on(device)
            return tensor
        weights = self._weights_map
        if weights is None:
            weights = kept
            if not tensor.is_meta:
                kept[full_name] = in_memory(tensor)
        name = f"{self._module_name}.{full_name}".lstrip(".")
        if full_name not in weights:
            missing = "it is on the meta device, and " if tensor.is_meta else ""
            raise StateError(
                f"`{name}` cannot be offloaded: {missing}the given weights do not include it. "
                "Load the checkpoint first, or pass the state dict or folder that has it."
            )
        is_owned = weights is kept or self._settings.owns_weights
        source = StoredWeight.of(weights, full_name, is_owned=is_owned)
        weight = OffloadedWeight(source, name=name, device=device, dtype=tensor.dtype)
        return placeholder_for(tensor, weight, owner)


def _tensors_of(module: nn.Module, *, recurse: bool) -> list[tuple[str, nn.Module, str]]:
    """Return the full name of each parameter and buffer, the module that has it, and its name there."""
    return [
        (f"{prefix}.{name}".lstrip("."), owner, name)
        for prefix, owner in (module.named_modules() if recurse else [("", module)])
        for members in (owner._parameters, owner._buffers)
        for name, tensor in members.items()
        if tensor is not None
    ]


def _weights_in(module: nn.Module) -> Iterator[OffloadedWeight]:
    tensors = itertools.chain(module.parameters(), module.buffers())
    return (weight for tensor in tensors if (weight := weight_of(tensor)) is not None)


def _moved(value: Any, device: int | str | torch.device, skip_keys: str | Sequence[str] | None = None) -> Any:
    """Return ``value``, nearly always a tensor, on a device."""
    return (
        value.to(device)
        if isinstance(value, torch.Tensor)
        else send_to_device(value, device, skip_keys=skip_keys)
    )


def _device_of(values: Any) -> torch.device | None:
    """Return the device of the first tensor, which nearly always is the first value."""
    first = values[0] if isinstance(values, tuple) and values else values
    return first.device if isinstance(first, torch.Tensor) else find_device(values)


def _refuse_empty(module: nn.Module, output: Any) -> None:
    device = _device_of(output)
    if device is not None and device.type == "meta":
        raise StateError(
            f"`{type(module).__name__}` returned a tensor without values, because it used a weight that was never "
            "loaded. Load it, or make it a parameter of a module."
        )
