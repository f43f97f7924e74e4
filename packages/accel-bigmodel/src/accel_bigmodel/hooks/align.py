"""The hook that brings weights and inputs together on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from accel_bigmodel.hooks.protocol import ModelHook
from accel_bigmodel.offload.placeholders import Origin, origin_of, placeholder_for
from accel_bigmodel.offload.prefetch import Prefetcher
from accel_bigmodel.placing import TiedParams, set_module_tensor_to_device
from accel_ops.nested.description import find_device
from accel_ops.nested.placement import send_to_device
from accel_state.errors import StateError


@dataclass(slots=True)
class Member:
    """One place in a module, with the placeholder that is there between forwards."""

    owner: nn.Module
    name: str
    placeholder: torch.Tensor

    def tensors(self) -> dict[str, Any]:
        """Return the table of the module in which it stands."""
        owner: Any = self.owner
        found: dict[str, Any] = (
            owner._parameters if isinstance(self.placeholder, nn.Parameter) else owner._buffers
        )
        return found

    @property
    def origin(self) -> Origin:
        """Where the values come from."""
        origin = origin_of(self.placeholder)
        assert origin is not None
        return origin


class AlignDevicesHook(ModelHook):
    """Moves inputs to the device of a module, and brings the module's offloaded weights there for its forward.

    Args:
        execution_device: Where the module runs; by default where its inputs are.
        offload: Keep the weights elsewhere between forwards.
        io_same_device: Move the output to where the input was.
        weights_map: Where offloaded weights are kept, by name in the module; by default a copy on the CPU.
        offload_buffers: Offload buffers too.
        place_submodules: Care for the weights of everything inside, not only the module's own.
        skip_keys: Keyword arguments that are not moved.
        tied_params_map: By address, what has already been moved to a device.
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
    ) -> None:
        self.execution_device = execution_device
        self.offload = offload
        self.io_same_device = io_same_device
        self.weights_map = weights_map
        self.offload_buffers = offload_buffers
        self.place_submodules = place_submodules
        self.skip_keys = skip_keys
        self.tied_params_map = tied_params_map
        self.input_device: torch.device | None = None
        self.original_devices: dict[str, torch.device] = {}
        self.prefetcher: Prefetcher | None = None
        self.members: list[Member] = []
        self.refuses_empty_output = False
        self._swapped: list[list[tuple[Member, torch.Tensor]]] = []
        # Placeholders already made for tensors that other modules have too: {id: (tensor, placeholder)}.
        self.ties: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.module_name = ""
        self._while_loading: list[RemovableHandle] = []

    def __repr__(self) -> str:
        return (
            f"AlignDevicesHook(execution_device={self.execution_device}, offload={self.offload}, "
            f"io_same_device={self.io_same_device}, offload_buffers={self.offload_buffers}, "
            f"place_submodules={self.place_submodules}, skip_keys={self.skip_keys!r})"
        )

    @property
    def origins(self) -> list[Origin]:
        """Where the offloaded weights come from."""
        return [member.origin for member in self.members]

    def init_hook(self, module: nn.Module) -> nn.Module:
        if self.execution_device == "meta" or self.execution_device == torch.device("meta"):
            self.tied_params_map = None
        places = list(_places(module, recurse=self.place_submodules))
        if self.offload:
            self.original_devices = {name: tensor.device for name, _, _, tensor, _ in places}
            self._offload(places)
            # A state dict is loaded into the values: torch takes a placeholder for a weight that cannot be written to.
            untyped: Any = module
            self._while_loading = [
                untyped.register_load_state_dict_pre_hook(self._before_loading),
                untyped.register_load_state_dict_post_hook(self._after_loading),
            ]
        elif self.execution_device is not None:
            for name, _, _, tensor, _ in places:
                if origin_of(tensor) is None:
                    set_module_tensor_to_device(
                        module, name, self.execution_device, tied_params_map=self.tied_params_map
                    )
        return module

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.io_same_device:
            self.input_device = find_device([args, kwargs])
        if self.offload:
            self._bring()
        if self.execution_device is None:
            return args, kwargs
        try:
            args = send_to_device(args, self.execution_device)
            kwargs = send_to_device(kwargs, self.execution_device, skip_keys=self.skip_keys)
        except BaseException:
            self.after_error(module)
            raise
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        if self.offload:
            self._put_back()
        if self.io_same_device and self.input_device is not None:
            if self.refuses_empty_output and self.input_device.type != "meta":
                _refuse_empty(module, output)
            output = send_to_device(output, self.input_device, skip_keys=self.skip_keys)
        return output

    def after_error(self, module: nn.Module) -> None:
        if self.offload:
            self._put_back()

    def detach_hook(self, module: nn.Module) -> nn.Module:
        for member in self.members:
            if member.tensors().get(member.name) is member.placeholder:
                full = _full_name(module, member)
                device = self.original_devices.get(full, torch.device("cpu"))
                if device.type != "meta":
                    setattr(member.owner, member.name, member.origin.resident(member.placeholder, device))
        self.members = []
        for handle in self._while_loading:
            handle.remove()
        self._while_loading = []
        return module

    @contextlib.contextmanager
    def weights_here(self) -> Iterator[None]:
        """Within this context the weights are in the module, as in its forward."""
        self._bring()
        try:
            yield
        finally:
            self._put_back()

    def _before_loading(self, module: nn.Module, *_: Any) -> None:
        self._bring()

    def _after_loading(self, module: nn.Module, _: Any) -> None:
        self._put_back()

    def _offload(self, places: list[tuple[str, nn.Module, str, torch.Tensor, bool]]) -> None:
        kept: dict[str, torch.Tensor] = {}
        for full, owner, name, tensor, is_buffer in places:
            if is_buffer and not self.offload_buffers:
                if self.execution_device is not None and not tensor.is_meta:
                    set_module_tensor_to_device(owner, name, self.execution_device)
                continue
            placeholder = tensor if origin_of(tensor) is not None else self._placeholder(full, tensor, kept)
            setattr(owner, name, placeholder)
            self.members.append(Member(owner, name, placeholder))
        if self.weights_map is None:
            self.weights_map = kept

    def _placeholder(self, full: str, tensor: torch.Tensor, kept: dict[str, torch.Tensor]) -> torch.Tensor:
        if id(tensor) in self.ties:
            return self.ties[id(tensor)][1]
        told = f"{self.module_name}.{full}".lstrip(".")
        if self.weights_map is None and not tensor.is_meta:
            kept[full] = tensor.detach().to("cpu")
        weights = kept if self.weights_map is None else self.weights_map
        if full not in weights:
            raise StateError(
                f"`{told}` is to be offloaded, but its values are nowhere: not in the weights that were given. "
                "Load the checkpoint first, or give the state dict or folder that has it."
            )
        device = torch.device("cpu" if self.execution_device is None else self.execution_device)
        placeholder = placeholder_for(tensor, Origin(weights, full, name=told, device=device, like=tensor))
        self.ties[id(tensor)] = (tensor, placeholder)
        return placeholder

    def _bring(self) -> None:
        swapped: list[tuple[Member, torch.Tensor]] = []
        self._swapped.append(swapped)
        try:
            for member in self.members:
                tensors = member.tensors()
                # A parameter that someone has replaced is used as it is; inside a forward of the same module
                # the values are here already.
                if tensors.get(member.name) is member.placeholder:
                    value = member.origin.acquire(member.placeholder)
                    swapped.append((member, value))
                    _put(member, tensors, value)
        except BaseException:
            self._put_back()
            raise
        if self.prefetcher is not None:
            self.prefetcher.entered(self)

    def _put_back(self) -> None:
        if not self._swapped:
            return
        for member, value in self._swapped.pop():
            tensors = member.tensors()
            now = tensors.get(member.name)
            if now is value:
                _put(member, tensors, member.placeholder)
            elif now is not None and not isinstance(member.placeholder, nn.Parameter):
                member.origin.write(now)  # the forward replaced a buffer
                _put(member, tensors, member.placeholder)
            member.origin.release()


def _put(member: Member, tensors: dict[str, Any], value: torch.Tensor) -> None:
    if type(member.owner).__setattr__ is nn.Module.__setattr__:
        tensors[member.name] = value
    else:
        setattr(member.owner, member.name, value)  # recurrent layers keep a list of their weights beside


def _places(module: nn.Module, *, recurse: bool) -> list[tuple[str, nn.Module, str, torch.Tensor, bool]]:
    modules = module.named_modules() if recurse else [("", module)]
    return [
        (f"{prefix}.{name}" if prefix else name, owner, name, tensor, is_buffer)
        for prefix, owner in modules
        for members, is_buffer in ((owner._parameters, False), (owner._buffers, True))
        for name, tensor in members.items()
        if tensor is not None
    ]


def _full_name(module: nn.Module, member: Member) -> str:
    for prefix, owner in module.named_modules():
        if owner is member.owner:
            return f"{prefix}.{member.name}" if prefix else member.name
    return member.name


def _refuse_empty(module: nn.Module, output: Any) -> None:
    device = find_device(output)
    if device is not None and device.type == "meta":
        raise StateError(
            f"`{type(module).__name__}` returned a tensor without values: something in it reads a weight that was "
            "never loaded. Load it, or make it a parameter of a module."
        )
