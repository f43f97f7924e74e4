"""Placeholders: tensors that represent offloaded weights in a module.

A placeholder is a tensor on the meta device that refers to its `OffloadedWeight`. A hook replaces it by the values for
the forward pass of its module. Any torch function called on a placeholder at another time is called with the values
instead. Everything that it writes is stored, and so is what is written later through a view or an array that it
returned.
"""

from __future__ import annotations

import copy
import inspect
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any, cast

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from accel_bigmodel.offload.transfer import is_copied
from accel_bigmodel.offload.weight import OffloadedWeight
from accel_bigmodel.tensors.kinds import attributes_of
from accel_state.errors import StateError


class _Placeholder(torch.Tensor):
    """Behaviour shared by both kinds of placeholders."""

    _weight: OffloadedWeight
    resident_class: type

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _metadata_functions():
            if func in _DEVICE and sys._getframe(1).f_code in _MOVING_TO_DEVICE:
                return torch.device("cpu")  # where functions of a single weight return their results
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return _call_with_values(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if weight_of(self) is None:
            return copy.deepcopy(make_plain(self), memo)
        if id(self) not in memo:
            copied = _make(type(self), self._weight.__deepcopy__(memo), self)
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


class ForwardDepth(threading.local):
    """The nesting depth of forward passes with offloaded weights in this thread, and the weights held until the end."""

    def __init__(self) -> None:
        self.depth = 0
        self.held: list[OffloadedWeight] = []

    def enter(self) -> None:
        """Enter a forward pass."""
        self.depth += 1

    def leave(self) -> None:
        """Leave a forward pass; leaving the outermost one releases the held weights."""
        self.depth -= 1
        if self.depth == 0:
            held, self.held = self.held, []
            for weight in held:
                weight.release()


forwards = ForwardDepth()


def placeholder_for(tensor: torch.Tensor, weight: OffloadedWeight, owner: nn.Module) -> torch.Tensor:
    """Return a placeholder for ``tensor``, which belongs to ``owner``."""
    made = _make(OffloadedParameter if isinstance(tensor, nn.Parameter) else OffloadedBuffer, weight, tensor)
    made.__dict__.update(attributes_of(tensor, owner))
    made.__dict__["resident_class"] = type(tensor)
    return made


def weight_of(tensor: object) -> OffloadedWeight | None:
    """Return the weight of a placeholder, ``None`` for any other tensor, even one with class and attributes of one."""
    itself = vars(tensor).get("_itself") if isinstance(tensor, _Placeholder) else None
    return vars(tensor)["_weight"] if itself is not None and itself() is tensor else None


def make_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Turn a placeholder, or a tensor with its class, into an ordinary tensor; it stays the same object."""
    usual = nn.Parameter if isinstance(tensor, nn.Parameter) else torch.Tensor
    tensor.__class__ = tensor.__dict__.pop("resident_class", usual)
    for name in ("_weight", "_itself"):
        tensor.__dict__.pop(name, None)
    return tensor


def stored_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor, for a placeholder the stored ones; read only."""
    weight = weight_of(tensor)
    return tensor if weight is None else weight.shared_values()


def set_values(placeholder: torch.Tensor, weight: OffloadedWeight, values: torch.Tensor) -> None:
    """Replace the values of a placeholder's weight; shape and dtype may differ."""
    weight.store(values)
    if values.shape != placeholder.shape or values.dtype != placeholder.dtype:
        with torch._C.DisableTorchFunctionSubclass():
            placeholder.data = torch.empty_like(values, device="meta")


def _make(kind: type[Any], weight: OffloadedWeight, like: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        empty = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        made: torch.Tensor = torch.Tensor._make_subclass(kind, empty, like.requires_grad)
    made.__dict__.update(_weight=weight, _itself=weakref.ref(made))
    return made


def _call_with_values(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call ``func`` with the values of all placeholders among its arguments."""
    for tensor in _tensors_in((args, dict(kwargs))):
        if isinstance(tensor, _Placeholder) and weight_of(tensor) is None:
            make_plain(tensor)
            return func(*args, **kwargs)
    if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
        set_values(args[0], args[0]._weight, args[1])
        return None
    if func == torch.Tensor.data_ptr:
        _refuse_address(args[0])
    if func == torch.Tensor.detach and sys._getframe(2).f_code is nn.Module._save_to_state_dict.__code__:
        return args[0]._weight.shared_values()
    call = _Call()
    try:
        replaced_args, replaced_kwargs = call.with_values((args, dict(kwargs)))
        return call.finish(func(*replaced_args, **replaced_kwargs))
    finally:
        call.end()


class _Call:
    """One call of a torch function with placeholders among its arguments.

    Within a forward pass, or together with other tensors, the values are used on the execution device. A function of a
    single weight is called on the memory in which the weight is stored, so that its result can be written to.
    """

    def __init__(self) -> None:
        self._used: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self._acquired: list[OffloadedWeight] = []

    def with_values(self, arguments: Any) -> Any:
        """Return ``arguments`` with values in place of placeholders, at any depth."""
        is_alone = not forwards.depth and len({id(tensor) for tensor in _tensors_in(arguments)}) == 1
        return self._replaced(arguments, in_place=is_alone)

    def finish(self, result: Any) -> Any:
        """Store what was written or can still be written; return the placeholder in place of its values."""
        for placeholder, value, version in self._used.values():
            weight = cast(_Placeholder, placeholder)._weight
            is_written = value._version != version
            is_shared = result is not value and _may_share_memory(result, value)
            if not (weight.is_value(value) and is_copied(weight.device)):
                if is_written or is_shared:
                    weight.store(value)
            elif is_shared and forwards.depth:
                weight.acquire(placeholder)  # its release stores what is written through the view
                forwards.held.append(weight)
            if result is value:
                result = placeholder
        return result

    def end(self) -> None:
        """Release the acquired weights."""
        for weight in self._acquired:
            weight.release()

    def _replaced(self, item: Any, *, in_place: bool) -> Any:
        if isinstance(item, _Placeholder):
            if id(item) not in self._used:
                weight = item._weight
                if in_place:
                    value = weight.in_place(item)
                else:
                    value = weight.acquire(item)
                    self._acquired.append(weight)
                self._used[id(item)] = (item, value, value._version)
            return self._used[id(item)][1]
        if isinstance(item, list | tuple):
            inner = [self._replaced(part, in_place=in_place) for part in item]
            return type(item)(*inner) if hasattr(item, "_fields") else type(item)(inner)
        if type(item) is dict:
            return {key: self._replaced(part, in_place=in_place) for key, part in item.items()}
        return item


def _tensors_in(item: Any) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, list | tuple):
        for part in item:
            yield from _tensors_in(part)
    elif type(item) is dict:
        yield from _tensors_in(list(item.values()))


def _may_share_memory(result: Any, value: torch.Tensor) -> bool:
    """Whether writing to the result of a function can change ``value``."""
    if isinstance(result, torch.Tensor):
        if result.device != value.device or result.layout != torch.strided:
            return False
        return result.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    if isinstance(result, list | tuple):
        return any(_may_share_memory(part, value) for part in result)
    return not isinstance(result, Number | str | torch.dtype | torch.device | None)


def _refuse_address(placeholder: Any) -> None:
    if not placeholder._weight.is_live:
        raise StateError(
            f"The address of `{placeholder._weight.name}` was requested while it is offloaded. Add the class of the "
            "module that uses it to `preload_module_classes`, or do not offload it."
        )


_DEVICE = (cast(Any, torch.Tensor.device).__get__,)
_MOVING_TO_DEVICE = (
    inspect.unwrap(torch.nn.utils.get_total_norm).__code__,
    AveragedModel.update_parameters.__code__,
)
"""Functions of torch that move results to the ``device`` of a weight, where one on the meta device loses its values."""

_METADATA: set[Any] = set()
_WITH_VALUES = {"data", "T", "mT", "H", "mH", "real", "imag", "_cdata"}
_METHODS = (
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex",
    "is_signed", "is_contiguous", "storage_offset", "requires_grad_", "__hash__", "__len__", "is_inference",
    "register_hook", "register_post_accumulate_grad_hook", "_is_view", "get_device",
)  # fmt: skip


def _metadata_functions() -> set[Any]:
    """Return the functions that read or set metadata of a tensor, not its values."""
    if not _METADATA:
        found: set[Any] = {getattr(torch.Tensor, name) for name in _METHODS}
        found |= {torch.is_floating_point, torch.is_complex, torch.numel}
        for name, member in vars(torch._C.TensorBase).items():
            if type(member).__name__ == "getset_descriptor" and name not in _WITH_VALUES:
                found.add(member.__get__)
        tensor: Any = torch.Tensor
        found |= {tensor.requires_grad.__set__, tensor.grad.__get__, tensor.grad.__set__}
        _METADATA.update(found)
    return _METADATA
