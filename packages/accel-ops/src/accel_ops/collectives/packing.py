"""Nested tensors as a few flat ones: one buffer per dtype for the small leaves, each large leaf by itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from accel_ops.nested.structures import (
    dataclass_items,
    is_dataclass_instance,
    map_children,
    unsupported_leaf,
)

#: From this size on, copying a tensor into a buffer costs more than a collective of its own. Measured on
#: gloo; on an accelerator memory is faster, and starting a collective takes as long as copying megabytes.
_LARGE_BYTES = {"cpu": 1 << 18}
_LARGE_BYTES_ELSEWHERE = 1 << 22


def flatten(data: Any, *, user: object, dense_only: bool = True) -> tuple[list[torch.Tensor], str]:
    """Return the tensors of nested data and the structure of its containers as text.

    Raises:
        TypeError: If a leaf is no tensor, or no dense one with ``dense_only``; ``user`` is the function that
            the message names.
    """
    leaves: list[torch.Tensor] = []
    structure: list[str] = []

    def enter(values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                if dense_only and (value.layout is not torch.strided or value.is_nested or value.is_quantized):
                    raise TypeError(_not_dense(value, user=user))
                leaves.append(value)
                structure.append("*")
            elif isinstance(value, (list, tuple)):
                structure.append(f"[{len(value)}")
                enter(value)
            elif isinstance(value, Mapping):
                structure.append(f"{{{','.join([_spell(key) for key in value])}}}")
                enter(value.values())
            elif is_dataclass_instance(value):
                fields = dict(dataclass_items(value))
                structure.append(f"{{{','.join(fields)}}}")
                enter(fields.values())
            else:
                raise TypeError(unsupported_leaf(value, user=user))

    enter((data,))
    return leaves, "".join(structure)


def _spell(key: object) -> str:
    """Write a key of a mapping the same way in every process: by its value if plain, else by its class."""
    if isinstance(key, (str, int, float, bytes, type(None))):
        return repr(key)
    if isinstance(key, tuple):
        return f"({','.join([_spell(item) for item in key])})"
    return type(key).__qualname__


def _not_dense(tensor: torch.Tensor, *, user: object) -> str:
    if tensor.is_quantized:
        kind, remedy = "quantized", "dequantize()"
    else:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        remedy = "to_dense()"
    name = getattr(user, "__name__", user)
    return f"`{name}` takes dense tensors, got a {kind} one. Make it dense first (`{remedy}`)."


def rebuild(data: Any, leaves: Iterator[torch.Tensor]) -> Any:
    """Return nested data with the next of ``leaves`` in the place of each tensor."""

    def visit(value: Any) -> Any:
        return next(leaves) if isinstance(value, torch.Tensor) else map_children(value, visit)

    return visit(data)


def plain(leaf: torch.Tensor) -> torch.Tensor:
    """Return the tensor without autograd history and with its values as they are in memory."""
    return leaf.detach().resolve_conj().resolve_neg()


def is_large(leaf: torch.Tensor) -> bool:
    """Tell whether a leaf is sent by itself."""
    return leaf.nbytes >= _LARGE_BYTES.get(leaf.device.type, _LARGE_BYTES_ELSEWHERE)


def group_leaves(leaves: Sequence[torch.Tensor], kind: Callable[[torch.Tensor], Hashable]) -> list[list[int]]:
    """Return the positions of the leaves in groups: those of one device and kind, the large ones alone."""
    groups: list[list[int]] = []
    shared: dict[Hashable, list[int]] = {}
    for position, leaf in enumerate(leaves):
        if is_large(leaf):
            groups.append([position])
            continue
        key = (leaf.device, kind(leaf))
        if key in shared:
            shared[key].append(position)
        else:
            shared[key] = [position]
            groups.append(shared[key])
    return groups


def pack(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the values of leaves of one dtype end to end; those of a single leaf without a copy if possible."""
    if len(leaves) == 1:
        return leaves[0].contiguous().view(-1)
    return torch.cat([leaf.reshape(-1) for leaf in leaves])


def unpack(
    packed: torch.Tensor, sizes: Sequence[int], shapes: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Cut the last dimension into tensors of the given sizes and shapes, each in memory of its own."""
    pieces = [packed] if len(sizes) == 1 else torch.split_with_sizes_copy(packed, list(sizes), dim=-1)
    return [piece.reshape(tuple(shape)) for piece, shape in zip(pieces, shapes, strict=True)]
