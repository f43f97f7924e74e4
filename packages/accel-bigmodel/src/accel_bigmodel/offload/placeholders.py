"""Placeholders: tensors that represent offloaded weights in a module.

A placeholder is a tensor on the meta device that refers to its `OffloadedWeight`. A hook replaces it by the values for
the forward pass of its module. Other uses within a forward pass, such as by the module around it, are called with the
values, too. Outside of a forward pass a placeholder has metadata only.
Why it is a subclass, and why writes are kept: docs/decisions/0006-an-offloaded-weight-keeps-what-is-written.md.
"""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn

from accel_bigmodel.offload.weight import OffloadedWeight, forwards
from accel_bigmodel.tensors import attributes_of, check_device_same
from accel_ops.nested.describe import iterate_tensors
from accel_ops.nested.structures import recursively_apply
from accel_state.errors import StateError


class _Placeholder(torch.Tensor):
    """Behavior of both kinds of placeholders."""

    _weight: OffloadedWeight
    resident_class: type

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if _is_metadata(func):
            with torch._C.DisableTorchFunctionSubclass():  # else the call would end up here again
                return func(*args, **(kwargs or {}))
        for tensor in iterate_tensors((args, dict(kwargs or {}))):
            if isinstance(tensor, _Placeholder) and weight_of(tensor) is None:
                make_plain(tensor)
                return func(*args, **(kwargs or {}))
        if func == _DATA.__set__:
            if args[1] is not args[0]:
                set_values(args[0], args[0]._weight, args[1])
            return None
        if func == torch.Tensor.data_ptr:
            _refuse_address(args[0]._weight)
        if forwards.depth:
            return _call_with_values(func, args, kwargs or {})
        # `state_dict` detaches each parameter, and gets the stored values; other code that detaches gets metadata.
        if func == torch.Tensor.detach and sys._getframe(1).f_code is nn.Module._save_to_state_dict.__code__:
            return args[0]._weight.shared_values()
        return _metadata_of_values(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if weight_of(self) is None:
            return copy.deepcopy(make_plain(self), memo)
        if id(self) not in memo:
            copied = _make(type(self), copy.deepcopy(self._weight, memo), self)
            copied.__dict__.update({**vars(self), **vars(copied)})
            memo[id(self)] = copied
        return cast(torch.Tensor, memo[id(self)])

    def __reduce_ex__(self, protocol: Any) -> Any:
        weight = weight_of(self)
        return cast(Any, make_plain(self)).__reduce_ex__(protocol) if weight is None else weight.__reduce__()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        weight = weight_of(self)
        if weight is None:
            return repr(make_plain(self))
        return f"{type(self).__name__}(`{weight.name}`, {tuple(self.shape)}, {self.dtype}, used on {weight.device})"


class OffloadedParameter(_Placeholder, nn.Parameter):
    """The placeholder of a parameter."""


class OffloadedBuffer(_Placeholder):
    """The placeholder of a buffer."""


class OffloadedView(torch.Tensor):
    """A view of an offloaded weight that was taken outside of a forward pass, and has values within one only."""

    _weight: OffloadedWeight
    _take: Callable[[], torch.Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if _is_metadata(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if not forwards.depth:
            return _metadata_of_values(func, args, kwargs or {})
        args, kwargs = recursively_apply(
            lambda view: view._take(),
            (args, dict(kwargs or {})),
            test_type=lambda item: isinstance(item, OffloadedView),
        )
        return func(*args, **kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}(of `{self._weight.name}`, {tuple(self.shape)}, {self.dtype})"


def placeholder_for(tensor: torch.Tensor, weight: OffloadedWeight, owner: nn.Module) -> torch.Tensor:
    """Return a placeholder for ``tensor`` of ``owner``: a tensor of the same shape on the meta device."""
    made = _make(OffloadedParameter if isinstance(tensor, nn.Parameter) else OffloadedBuffer, weight, tensor)
    made.__dict__.update(attributes_of(tensor, owner))
    made.__dict__["resident_class"] = type(tensor)
    return made


def weight_of(tensor: object) -> OffloadedWeight | None:
    """Return the weight of a placeholder, ``None`` for any other tensor, even one with class and attributes of one."""
    itself = vars(tensor).get("_itself") if isinstance(tensor, _Placeholder) else None
    return vars(tensor)["_weight"] if itself is not None and itself() is tensor else None


def make_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Turn a placeholder, or a tensor with its class, into an ordinary tensor of any shape and device, in place."""
    usual = nn.Parameter if isinstance(tensor, nn.Parameter) else torch.Tensor
    # In place: optimizers and tied modules that refer to the placeholder must have the tensor.
    tensor.__class__ = tensor.__dict__.pop("resident_class", usual)
    for name in ("_weight", "_itself"):
        tensor.__dict__.pop(name, None)
    return tensor


def stored_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of any shape and device, or the stored values of a placeholder; do not write to them."""
    weight = weight_of(tensor)
    return tensor if weight is None else weight.shared_values()


def set_values(placeholder: torch.Tensor, weight: OffloadedWeight, values: torch.Tensor) -> None:
    """Replace the values of a placeholder's weight; ``values`` may be on any device, of another shape and dtype.

    If they are a placeholder, both weights share the stored values.
    """
    other = weight_of(values)
    if other is None:
        weight.store(values)
    else:
        weight.share_store_of(other)
    if values.shape != placeholder.shape or values.dtype != placeholder.dtype:
        with torch._C.DisableTorchFunctionSubclass():
            placeholder.data = torch.empty_like(values, device="meta")


def _make(
    kind: type[Any], weight: OffloadedWeight, like: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        empty = torch.empty_strided(like.shape, like.stride(), dtype=dtype or like.dtype, device="meta")
        made: torch.Tensor = torch.Tensor._make_subclass(kind, empty, like.requires_grad)
    made.__dict__.update(_weight=weight, _itself=weakref.ref(made))
    return made


def _call_with_values(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call ``func`` within a forward pass, with values in place of placeholders at any depth."""
    used: list[tuple[_Placeholder, torch.Tensor]] = []

    def value_of(placeholder: _Placeholder) -> torch.Tensor:
        used.append((placeholder, placeholder._weight.acquire(placeholder)))
        return used[-1][1]

    try:
        args, kwargs = recursively_apply(value_of, (args, dict(kwargs)), test_type=_is_placeholder)
        result = func(*args, **kwargs)
        for placeholder, value in used:
            if result is value:
                return placeholder
            if any(_shares_memory(part, value) for part in iterate_tensors(result)):
                # Keep the value until the end of the forward pass, which may write through the view and stores it.
                placeholder._weight.acquire(placeholder)
                forwards.in_use.append(placeholder._weight)
        return result
    finally:
        for placeholder, _ in used:
            placeholder._weight.release()


def _is_placeholder(item: object) -> bool:
    return isinstance(item, _Placeholder)


def _shares_memory(result: torch.Tensor, value: torch.Tensor) -> bool:
    if result.device != value.device or result.layout != torch.strided:
        return False
    return result.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()


def _metadata_of_values(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return ``tensor.data``, a conversion or a view outside of a forward pass, without values.

    Enough for ``model.half()``, ``model.to(dtype)`` and shape computations: a conversion returns a placeholder of the
    new dtype. A move to another device raises, because hooks decide the device.
    """
    placeholder = args[0] if args else None
    if isinstance(placeholder, (_Placeholder, OffloadedView)) and _name_of(func) in _VIEWS:
        with torch._C.DisableTorchFunctionSubclass():
            view: torch.Tensor = func(*args, **kwargs).as_subclass(OffloadedView)
        view.__dict__.update(_weight=placeholder._weight, _take=functools.partial(func, *args, **kwargs))
        return view
    if isinstance(placeholder, _Placeholder):
        if func == _DATA.__get__:
            return placeholder
        weight, device, dtype = placeholder._weight, None, _CONVERSIONS.get(func)
        if func == torch.Tensor.to:
            device, dtype, *_ = torch._C._nn._parse_to(*args[1:], **kwargs)  # as `nn.Module.to` does
        if func == torch.Tensor.cpu:
            device = torch.device("cpu")
        stays = device is None or device.type == "meta" or check_device_same(device, weight.device)
        if stays and dtype not in (None, placeholder.dtype):
            return _make(type(placeholder), weight.in_dtype(dtype), placeholder, dtype)
        if stays and func in (torch.Tensor.to, torch.Tensor.cpu, *_CONVERSIONS):
            return placeholder
    tensors = iterate_tensors((args, dict(kwargs)))
    weights = [t._weight for t in tensors if isinstance(t, (_Placeholder, OffloadedView))]
    raise StateError(
        f"`{weights[0].name}` is offloaded, so it has values in a forward pass only. "
        "Read and write it inside `with align_module_device(module):`, where `module` is the module that has it."
    )


def _refuse_address(weight: OffloadedWeight) -> None:
    if not weight.is_live:
        raise StateError(
            f"The address of `{weight.name}` was requested while it is offloaded. Add the class of the "
            "module that uses it to `preload_module_classes`, or do not offload it."
        )


_DATA = cast(Any, torch.Tensor.data)
_CONVERSIONS = {
    torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16,
    torch.Tensor.float: torch.float32, torch.Tensor.double: torch.float64,
}  # fmt: skip
_WITH_VALUES = {"data", "T", "mT", "H", "mH", "real", "imag", "_cdata", "__cuda_array_interface__"}
_METADATA = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex",
    "is_signed", "is_contiguous", "storage_offset", "requires_grad_", "__hash__", "__len__", "is_inference",
    "register_hook", "register_post_accumulate_grad_hook", "_is_view", "get_device",
    "_has_compatible_shallow_copy_type",
}  # fmt: skip
_VIEWS = {
    "T", "mT", "detach", "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "t", "transpose",
    "permute", "movedim", "unsqueeze", "squeeze", "expand", "expand_as", "select", "narrow", "__getitem__",
}  # fmt: skip


def _name_of(func: Any) -> str:
    """Return the name of a function, or of the attribute that it gets."""
    if func.__name__ != "__get__":
        return str(func.__name__)
    attribute = func.__self__  # a property, or a descriptor written in C
    return str(getattr(attribute, "fget", attribute).__name__)


@functools.cache
def _is_metadata(func: Any) -> bool:
    """Whether a function reads or sets metadata of a tensor, not its values."""
    if func.__name__ == "__set__":
        return func.__self__.__name__ in ("requires_grad", "grad")
    name = _name_of(func)
    return name not in _WITH_VALUES if func.__name__ == "__get__" else name in _METADATA
