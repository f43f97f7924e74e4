"""What stands in a module for a weight that is elsewhere.

A placeholder is a tensor on the meta device that knows where its values lie. During its module's forward a hook puts
the values in its place. Whoever uses it at another time, by whatever torch function, gets the right result too: the
values are fetched for that one call.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import nn

from accel_bigmodel.offload.transfer import Arrival, bring, is_in_memory
from accel_bigmodel.placing import as_parameter_like
from accel_state.errors import StateError


class Origin:
    """Where the values of one placeholder come from, and where they are now.

    Args:
        weights: Stored weights by name; never written to.
        key: The name in ``weights``.
        name: The name in the model, for messages.
        device: Where the values are used.
        like: The tensor that the placeholder replaces: class, dtype and attributes.
    """

    def __init__(
        self, weights: Mapping[str, Any], key: str, *, name: str, device: torch.device, like: torch.Tensor
    ) -> None:
        self.weights, self.key, self.name, self.device = weights, key, name, device
        self.dtype = like.dtype
        self.changed: torch.Tensor | None = None
        self.live: torch.Tensor | None = None
        self._users = 0
        self._version = 0
        self._arrival: Arrival | None = None
        self._resident: weakref.ref[torch.Tensor] | None = None
        self._lent: weakref.ref[torch.Tensor] | None = None
        self._lock = threading.RLock()

    def stored(self) -> torch.Tensor:
        """Return the values where they are kept, in the dtype of the model; not to be written to."""
        if self.changed is not None:
            return self.changed
        tensor: torch.Tensor = self.weights[self.key]
        return tensor if tensor.dtype == self.dtype else tensor.to(self.dtype)

    def lend(self) -> torch.Tensor:
        """Return the values where they are kept, for a state dict: for all names of tied weights the same memory.

        A weight on disk is mapped anew for whoever asks, unless an earlier answer is still in use.
        """
        with self._lock:
            lent = None if self._lent is None else self._lent()
            if lent is None:
                lent = self.stored().detach()
                self._lent = weakref.ref(lent)
            return lent

    def prefetch(self) -> None:
        """Bring the values close to where they are used; called in another thread, before they are needed."""
        with self._lock:
            if self.live is None and self._arrival is None:
                stored = self.stored()
                announce = getattr(self.weights, "announce", None)
                if announce is not None and not is_in_memory(stored):
                    announce(self.key)
                self._arrival = bring(stored, self.device, ahead=True)

    def forget(self) -> None:
        """Drop what was brought and not used."""
        with self._lock:
            self._arrival = None

    def acquire(self, placeholder: torch.Tensor) -> torch.Tensor:
        """Return the values on their device, the same tensor until everyone has released it."""
        with self._lock:
            if self.live is None:
                is_trained = torch.is_grad_enabled() and placeholder.requires_grad
                with torch.inference_mode(False), torch.no_grad():
                    arrival, self._arrival = self._arrival, None
                    values = (arrival or bring(self.stored(), self.device)).take()
                    self.live = self._as_member(placeholder, values, is_trained=is_trained)
                self._version = self.live._version
            self._users += 1
            return self.live

    def release(self) -> None:
        """Let go of the values; what the forward wrote to them is kept."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self.live is not None:
                if self.live._version != self._version:
                    self.changed, self._lent = self.live.detach(), None
                self.live = None

    def write(self, values: torch.Tensor) -> None:
        """Replace the values."""
        with self._lock:
            self.changed = values.detach()
            self._arrival = self._lent = None

    def _as_member(
        self, placeholder: torch.Tensor, values: torch.Tensor, *, is_trained: bool
    ) -> torch.Tensor:
        if not isinstance(placeholder, nn.Parameter):
            return values
        parameter = as_parameter_like(placeholder, values)
        parameter.requires_grad_(is_trained)
        if is_trained:
            parameter.register_hook(self._refuse_gradient)  # type: ignore[no-untyped-call]
        return parameter

    def resident(self, placeholder: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a copy of the values to stay in the model, one for all places of tied weights."""
        made = None if self._resident is None else self._resident()
        if made is None or made.device != device:
            made = self.stored().to(device, copy=True)
            if isinstance(placeholder, nn.Parameter):
                made = as_parameter_like(placeholder, made)
            self._resident = weakref.ref(made)
        return made

    def _refuse_gradient(self, gradient: torch.Tensor) -> None:
        raise StateError(
            f"The gradient of `{self.name}` would be lost: the weight is offloaded and gone after the forward. Call "
            "`requires_grad_(False)` on what is not trained, or do not offload it."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        copied = Origin.__new__(Origin)
        copied.__dict__.update(self.__dict__)
        copied.live = copied._arrival = copied._resident = copied._lent = None
        copied._users, copied._lock = 0, threading.RLock()
        copied.changed = None if self.changed is None else self.changed.clone()
        memo[id(self)] = copied
        return copied


class _Placeholder(torch.Tensor):
    """What both kinds of placeholders do."""

    resident_class: ClassVar[type] = torch.Tensor
    _origin: Origin

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _about_tensors():
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return _call_with_values(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            memo[id(self)] = _make(type(self), self._origin.__deepcopy__(memo), self)
        return cast(torch.Tensor, memo[id(self)])

    def __reduce_ex__(self, protocol: Any) -> Any:
        resident = self._origin.stored().detach().cpu()
        if isinstance(self, nn.Parameter):
            resident = nn.Parameter(resident, requires_grad=self.requires_grad)
        return resident.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        origin = self._origin
        return f"{type(self).__name__}(`{origin.name}`, {tuple(self.shape)}, {self.dtype}, used on {origin.device})"


class OffloadedParameter(_Placeholder, nn.Parameter):
    """Stands in for a parameter."""

    resident_class: ClassVar[type] = nn.Parameter


class OffloadedBuffer(_Placeholder):
    """Stands in for a buffer."""


def placeholder_for(tensor: torch.Tensor, origin: Origin) -> torch.Tensor:
    """Return what stands in for ``tensor``."""
    made = _make(OffloadedParameter if isinstance(tensor, nn.Parameter) else OffloadedBuffer, origin, tensor)
    for key, attribute in vars(tensor).items():
        made.__dict__.setdefault(key, attribute)
    if isinstance(tensor, nn.Parameter) and type(tensor) is not nn.Parameter:
        made.__dict__["resident_class"] = type(tensor)
    return made


def origin_of(tensor: object) -> Origin | None:
    """Return where the values of a placeholder come from, ``None`` for any other tensor."""
    return tensor._origin if isinstance(tensor, _Placeholder) else None


def stored_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor, if it is a placeholder then from where they are kept; not to be written to."""
    origin = origin_of(tensor)
    return tensor if origin is None else origin.lend()


def _make(kind: type[Any], origin: Origin, like: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        empty = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        made: torch.Tensor = torch.Tensor._make_subclass(kind, empty, like.requires_grad)
    made._origin = origin  # type: ignore[attr-defined]
    return made


def _call_with_values(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call ``func`` with the values of all placeholders among its arguments, and keep what it writes to them."""
    if getattr(func, "__name__", "") == "data_ptr":
        _refuse_address(args[0])
    if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
        args[0]._origin.write(args[1])
        return None
    if func == torch.Tensor.detach:
        lent: torch.Tensor = args[0]._origin.lend()
        return lent
    taken: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    may_stay = func in _reading_only()

    def value_of(item: Any) -> Any:
        if isinstance(item, _Placeholder):
            if id(item) not in taken:
                origin = item._origin
                taken[id(item)] = (item, origin.stored() if may_stay else origin.acquire(item))
            return taken[id(item)][1]
        if isinstance(item, list | tuple):
            inner = [value_of(part) for part in item]
            return type(item)(*inner) if hasattr(item, "_fields") else type(item)(inner)
        return {key: value_of(part) for key, part in item.items()} if type(item) is dict else item

    try:
        result = func(*value_of(args), **value_of(dict(kwargs)))
    finally:
        if not may_stay:
            for placeholder, _ in taken.values():
                cast(_Placeholder, placeholder)._origin.release()
    for placeholder, value in taken.values():
        if result is value:
            return placeholder if not may_stay else result
    return result


def _refuse_address(placeholder: Any) -> None:
    if placeholder._origin.live is None:
        raise StateError(
            f"The address of `{placeholder._origin.name}` was asked for while it is offloaded. Name the class of the "
            "module that uses it in `preload_module_classes`, or do not offload it."
        )


_ABOUT: set[Any] = set()
_READING: set[Any] = set()
_WITH_VALUES = {"data", "T", "mT", "H", "mH", "real", "imag", "_cdata"}
_METHODS = (
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex",
    "is_signed", "is_contiguous", "storage_offset", "requires_grad_", "__hash__", "__len__", "is_inference",
    "register_hook", "register_post_accumulate_grad_hook", "_is_view", "get_device",
)  # fmt: skip


def _about_tensors() -> set[Any]:
    """Return the functions that ask for, or set, what a tensor is, not its values."""
    if not _ABOUT:
        found: set[Any] = {getattr(torch.Tensor, name) for name in _METHODS}
        found |= {torch.is_floating_point, torch.is_complex, torch.numel}
        for name, member in vars(torch._C.TensorBase).items():
            if type(member).__name__ == "getset_descriptor" and name not in _WITH_VALUES:
                found.add(member.__get__)
        tensor: Any = torch.Tensor
        found |= {tensor.requires_grad.__set__, tensor.grad.__get__, tensor.grad.__set__}
        _ABOUT.update(found)
    return _ABOUT


def _reading_only() -> set[Any]:
    """Return the functions that only read: they need no copy on the device of the forward."""
    if not _READING:
        _READING.update({torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist})
    return _READING
