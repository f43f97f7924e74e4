"""Tensors in nested containers: deferred tensors, copies, and checks for plain and finite values."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.formats.torch_files import CONTAINERS, LEAVES, harmless_globals
from accel_ops.shared_tensors import Name, aliases, id_tensor_view
from accel_state.errors import CheckpointError

Keys = tuple[Any, ...]
Copy = Callable[[torch.Tensor], torch.Tensor]
_IMMUTABLE = frozenset(LEAVES) - {bytearray}
"""Most values are these, such as the hundreds of numbers of a random state."""


@dataclass(slots=True, eq=False)
class DeferredTensor:
    """A tensor that is fetched when it is written, so that a state need not fit into memory.

    Attributes:
        dtype: Its dtype.
        shape: Its shape.
        get: Returns it, on any device; it may be a collective.
        num_fetched: How often it was fetched.
    """

    dtype: torch.dtype
    shape: torch.Size
    get: Callable[[], torch.Tensor]
    num_fetched: int = 0

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def fetch(self) -> torch.Tensor:
        """Return the tensor, with `shape`, on any device; every rank must call it if `get` is a collective."""
        self.num_fetched += 1
        return self.get()


def fetched(value: torch.Tensor | DeferredTensor) -> torch.Tensor:
    """Return the tensor, fetched if it is deferred, with its shape, on any device."""
    return value.fetch() if isinstance(value, DeferredTensor) else value


@contextmanager
def fetching_all(order: Sequence[DeferredTensor]) -> Iterator[None]:
    """Fetch, at the end of the block, the tensors that it did not, since other ranks wait in their collectives."""
    before = [tensor.num_fetched for tensor in order]
    try:
        yield
    finally:  # also after an error, such as a full disk
        for tensor, count in zip(order, before, strict=True):
            if tensor.num_fetched == count:
                tensor.fetch()


def deferred_in(content: Any) -> list[DeferredTensor]:
    """Return the deferred tensors in nested containers, each once, in the order of the containers."""
    deferred = {id(value): value for _, value in leaves(content) if isinstance(value, DeferredTensor)}
    return list(deferred.values())


def second_names_in(state: Mapping[Name, Any]) -> dict[Name, Name]:
    """Return the second names of tensors, with the first name of each; other values are ignored."""
    first: dict[int, Name] = {}
    second: dict[Name, Name] = {}
    tensors: dict[Name, torch.Tensor] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, DeferredTensor) and first.setdefault(id(value), name) != name:
            second[name] = first[id(value)]
    return second | (aliases(tensors) if len(tensors) > 1 else {})


def check_plain(content: Any, *, file_name: str) -> list[DeferredTensor]:
    """Reject content that could not be loaded again without running code, and return its deferred tensors.

    Raises:
        CheckpointError: If there is any; names the file, the path of the value, and its type.
    """
    deferred: dict[int, DeferredTensor] = {}
    try:
        values = list(_not_plain(content, ""))
    except RecursionError as error:
        raise CheckpointError(
            f"`{file_name}` cannot be saved: its content is cyclic, or is nested too deeply. Flatten it."
        ) from error
    for where, value in values:
        if isinstance(value, DeferredTensor):
            deferred[id(value)] = value
            continue
        kind = type(value)
        raise CheckpointError(
            f"`{file_name}` cannot be saved: `{where or 'its content'}` is a `{kind.__module__}.{kind.__qualname__}`, "
            "which could not be loaded without running code. Return tensors, numbers, strings and "
            "containers of these from `state_dict`. Register other classes that are safe to load, and the classes of "
            "their fields, with `torch.serialization.add_safe_globals`."
        )
    return list(deferred.values())


def _not_plain(content: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the values that are not plain, and the deferred tensors, each with its path."""
    kind = type(content)
    if kind in LEAVES or kind in (torch.Tensor, torch.nn.Parameter):
        return
    if kind in CONTAINERS:
        is_mapping = isinstance(content, Mapping)
        for name, value in content.items() if is_mapping else enumerate(content):
            if is_mapping and type(name) is not str:
                yield from _not_plain(name, f"{where} key")
            if type(value) not in LEAVES:  # such as the hundreds of numbers of a random state
                yield from _not_plain(value, f"{where}.{name}" if where else str(name))
    elif isinstance(content, np.generic) or kind is np.ndarray:
        if content.dtype.kind not in "biufc":
            yield where, content
    elif isinstance(content, torch.Tensor):
        if kind not in _registered():
            yield where, content
    elif kind not in _registered() or not _is_loadable(content):
        yield where, content


def _registered() -> list[object]:
    """Return the classes registered with torch as safe to load, such as quantized tensors."""
    known = torch.serialization.get_safe_globals()
    return [entry[0] if isinstance(entry, tuple) else entry for entry in known]


def _is_loadable(content: Any) -> bool:
    """Whether ``torch.load(weights_only=True)`` can build a value of a registered class; of a deque it cannot."""
    file = io.BytesIO()
    try:
        torch.save(content, file)
        file.seek(0)
        with torch.serialization.safe_globals(harmless_globals()):
            torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError):
        return False
    return True


def leaves(content: Any, path: Keys = ()) -> list[tuple[Keys, Any]]:
    """Return the leaves of nested mappings, lists and tuples, each with its keys."""
    if not isinstance(content, (Mapping, list, tuple)):
        return [(path, content)]
    values: list[tuple[Keys, Any]] = []
    for name, value in content.items() if isinstance(content, Mapping) else enumerate(content):
        if isinstance(value, (Mapping, list, tuple)):
            values += leaves(value, (*path, name))
        else:
            values.append(((*path, name), value))
    return values


def map_tensors(content: Any, copy: Copy) -> Any:
    """Return ``content`` with its containers rebuilt and each tensor replaced by ``copy(tensor)``.

    A tensor that occurs twice is copied once. Immutable leaves such as numbers and strings are not copied.
    """
    return _mapped(content, copy, {})  # a closure would be a cycle that keeps the copies in memory


def _mapped(value: Any, copy: Copy, copies: dict[Hashable, torch.Tensor]) -> Any:
    if isinstance(value, DeferredTensor):
        if id(value) not in copies:
            copies[id(value)] = value.fetch().detach().cpu().clone(memory_format=torch.contiguous_format)
        return copies[id(value)]
    if isinstance(value, torch.Tensor):
        if not is_plain(value):
            return copy(value)
        view = id_tensor_view(value)
        if view not in copies:
            copies[view] = copy(value)
        return copies[view]
    if isinstance(value, Mapping):
        members = [
            (name, member if type(member) in _IMMUTABLE else _mapped(member, copy, copies))
            for name, member in value.items()
        ]
        if type(value) is dict:
            return dict(members)
        rebuilt: Any = type(value)()
        for name, member in members:
            rebuilt[name] = member
        return rebuilt
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        values = [each if type(each) in _IMMUTABLE else _mapped(each, copy, copies) for each in value]
        return values if isinstance(value, list) else tuple(values)
    if isinstance(value, (set, bytearray)):
        return type(value)(value)
    return value.copy() if hasattr(value, "__array__") and hasattr(value, "copy") else value


def sharable_in(state: Mapping[Name, Any]) -> dict[Name, Any]:
    """Return the tensors that may occur under several names: plain and deferred ones."""
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, DeferredTensor) or (isinstance(value, torch.Tensor) and is_plain(value))
    }


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a dense tensor, of any shape and device: not of a subclass, not sparse, not quantized."""
    kind = type(tensor)
    return (
        kind in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
    )


@torch.no_grad()
def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor of any shape has neither NaN nor infinity; negative infinity, as in masks, is allowed.

    Waits for the device. Tensors other than plain ones are not examined.
    """
    if not is_plain(tensor) or not tensor.numel():
        return True
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())  # it refuses tensors with the lazy conjugate bit
    if not tensor.is_floating_point():
        return True
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return True  # the format has neither NaN nor infinity
    if tensor.dtype.itemsize == 1:  # torch has no maximum of these
        tensor = tensor.to(torch.bfloat16)
    largest = tensor.max().item()  # `amax` without dimensions reduces nothing on XLA
    return not math.isnan(largest) and largest < math.inf


def nonfinite_in(content: Any) -> str:
    """Return the keys, joined by dots, of the first value in nested containers that is not finite.

    For numbers outside of tensors only NaN counts, since some optimizers have infinite limits.
    """
    for path, value in leaves(content):
        if isinstance(value, torch.Tensor):
            is_bad = not is_finite(value.detach())
        else:
            is_bad = isinstance(value, float) and math.isnan(value)
        if is_bad:
            return ".".join(map(str, path))
    return ""


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the same shape on the same device. For a wrapper subclass, such as a quantized tensor, copy the
    inner tensors."""
    return with_inner(tensor, torch.clone)


def with_inner(tensor: torch.Tensor, copy: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return ``copy(tensor)``; a wrapper subclass is rebuilt with its shape around copies of its inner tensors, on
    their device."""
    wrapper: Any = tensor
    if not is_traceable_wrapper_subclass(wrapper):
        return copy(tensor)
    # Not every wrapper supports `clone` (torchao 0.18: the states of its 8-bit optimizers).
    names, context = wrapper.__tensor_flatten__()
    parts = {name: with_inner(getattr(wrapper, name), copy) for name in names}
    rebuilt: torch.Tensor = type(wrapper).__tensor_unflatten__(
        parts, context, wrapper.size(), wrapper.stride()
    )
    return rebuilt


def compact_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor of the same shape with a storage of its size, since `torch.save` writes full storages."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        return with_inner(tensor, torch.Tensor.cpu)
    if not is_plain(tensor):
        return tensor
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
