"""Nested tensors made ready to travel: leaves in order, and a layout worked out once per structure."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from accel_ops.structures import dataclass_items, is_dataclass_instance, map_children, unsupported_leaf

_ALIGNMENT = 16
#: From this size on, copying a tensor into a common buffer costs more than a collective of its own.
LARGE_BYTES = 1 << 18
_REMEMBERED = 512
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_LARGEST_SHARED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """The leaves of one dtype, end to end."""

    dtype: torch.dtype
    #: Positions among the leaves.
    leaves: tuple[int, ...]
    #: Number of elements of each.
    sizes: tuple[int, ...]
    #: Whether all of them have the same shape.
    is_uniform: bool
    #: Shape of all of them joined along dimension 0, where they differ in that one alone.
    joined: tuple[int, ...] | None
    #: First byte in the buffer, a multiple of 16.
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each leaf lies in the buffer that crosses the wire."""

    #: 16 bytes that stand for operation, structure, dtypes and shapes; equal across processes and Python
    #: versions.
    digest: bytes
    segments: tuple[Segment, ...]
    packed_bytes: int
    #: Leaves that travel alone, without a copy.
    large: tuple[int, ...]
    #: Shape of the result for each leaf.
    shapes: tuple[tuple[int, ...], ...]
    #: Bytes of all leaves, padding between segments included.
    total_bytes: int


def flatten(
    data: Any, *, user: object, dense_only: bool = True
) -> tuple[list[torch.Tensor], tuple[Hashable, ...]]:
    """Return the tensors of nested data and a hashable outline of its containers.

    Raises:
        TypeError: If a leaf is no tensor, or no dense one with ``dense_only``; ``user`` is the function that
            the message names.
    """
    leaves: list[torch.Tensor] = []
    outline: list[Hashable] = []
    tensor_type, strided = torch.Tensor, torch.strided  # this loop runs for every leaf of every call

    def enter(values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, tensor_type):
                if dense_only and (value.layout is not strided or value.is_nested):
                    raise TypeError(_not_dense(value, user=user))
                leaves.append(value)
                outline.append(None)
            elif isinstance(value, (list, tuple)):
                outline.append(len(value))
                enter(value)
            elif isinstance(value, Mapping):
                outline.append(tuple(value))
                enter(value.values())
            elif is_dataclass_instance(value):
                fields = dict(dataclass_items(value))
                outline.append(tuple(fields))
                enter(fields.values())
            else:
                raise TypeError(unsupported_leaf(value, user=user))

    enter((data,))
    return leaves, tuple(outline)


def _not_dense(tensor: torch.Tensor, *, user: object) -> str:
    kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    name = getattr(user, "__name__", user)
    return f"`{name}` takes dense tensors, got a {kind} one. Make it dense first (`to_dense()`)."


def rebuild(data: Any, leaves: Iterator[torch.Tensor]) -> Any:
    """Return nested data with the next of ``leaves`` in the place of each tensor."""

    def visit(value: Any) -> Any:
        if type(value) is dict and _PLAIN.issuperset(map(type, value.values())):
            return dict(zip(value, leaves, strict=False))  # takes as many leaves as there are keys
        return next(leaves) if isinstance(value, torch.Tensor) else map_children(value, visit)

    return visit(data)


_layouts: dict[Hashable, Layout] = {}
_digests: dict[Hashable, bytes] = {}


def layout_of(
    operation: Hashable,
    outline: Hashable,
    leaves: Sequence[torch.Tensor],
    *,
    result_shape: Callable[[torch.Tensor], Sequence[int]],
) -> Layout:
    """Return the layout for these leaves, remembered while operation, structure, dtypes and shapes repeat."""
    signature = (
        operation,
        outline,
        tuple([leaf.dtype for leaf in leaves]),
        tuple([leaf.shape for leaf in leaves]),
    )
    layout = _layouts.get(signature)
    if layout is None:
        if len(_layouts) >= _REMEMBERED:
            _layouts.clear()
        shapes = tuple([tuple(result_shape(leaf)) for leaf in leaves])
        layout = _layouts[signature] = _make_layout(digest_of(signature), leaves, shapes)
    return layout


def digest_of(value: Hashable) -> bytes:
    """Return 16 bytes that two processes share when they were given equal plain values."""
    digest = _digests.get(value)
    if digest is None:
        if len(_digests) >= _REMEMBERED:
            _digests.clear()
        digest = _digests[value] = hashlib.blake2b(_spell(value).encode(), digest_size=16).digest()
    return digest


def _spell(value: object) -> str:
    """Write a value the same way in every process: by content if plain, else by the name of its class.

    Values that are equal are written alike whatever their type (1, 1.0 and True are one key of a dict):
    otherwise what a process remembers from an earlier call would decide how it is written.
    """
    if isinstance(value, tuple):
        return f"({','.join([_spell(item) for item in value])})"
    if isinstance(value, str):
        return str.__repr__(value)
    if isinstance(value, numbers.Integral):
        return repr(int(value))
    if isinstance(value, numbers.Real):
        number = float(value)
        return repr(int(number)) if number.is_integer() else repr(number)
    if value is None or isinstance(value, (bytes, torch.dtype)):
        return repr(value)
    return type(value).__qualname__


def _make_layout(
    digest: bytes, leaves: Sequence[torch.Tensor], shapes: tuple[tuple[int, ...], ...]
) -> Layout:
    by_dtype: dict[torch.dtype, list[int]] = {}
    large: list[int] = []
    for position, leaf in enumerate(leaves):
        if leaf.numel() * leaf.element_size() >= LARGE_BYTES:
            large.append(position)
        else:
            by_dtype.setdefault(leaf.dtype, []).append(position)
    segments: list[Segment] = []
    start = 0
    for dtype, members in by_dtype.items():
        sizes = tuple([leaves[position].numel() for position in members])
        num_bytes = sum(sizes) * dtype.itemsize
        of_members = [leaves[position].shape for position in members]
        is_uniform = len(set(of_members)) == 1
        joined = _joined_shape(of_members)
        segments.append(Segment(dtype, tuple(members), sizes, is_uniform, joined, start, num_bytes))
        start += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    alone = sum(leaves[position].numel() * leaves[position].element_size() for position in large)
    return Layout(digest, tuple(segments), start, tuple(large), shapes, start + alone)


def _joined_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape of tensors joined along dimension 0; None if they have none or differ in the others."""
    if not shapes[0] or any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        return None
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def members_of(segment: Segment, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the leaves that belong to a segment."""
    if len(segment.leaves) == len(leaves):
        return list(leaves)
    return [leaves[position] for position in segment.leaves]


def pack_segment(segment: Segment, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the leaves of a segment end to end, in memory of their own."""
    members = members_of(segment, leaves)
    if len(members) == 1:
        return members[0].reshape(-1).clone()
    flat: torch.Tensor = _flatten_dense_tensors(members)  # type: ignore[no-untyped-call]
    return flat


def rooms_in(layout: Layout, buffer: torch.Tensor) -> list[torch.Tensor]:
    """Return the parts of ``buffer`` (at least ``packed_bytes`` of uint8) where the segments belong."""
    return [segment_view(segment, buffer).view(segment.joined or (-1,)) for segment in layout.segments]


def pack(layout: Layout, leaves: Sequence[torch.Tensor], rooms: Sequence[torch.Tensor]) -> None:
    """Copy all leaves that are not large into the rooms of their segments."""
    for segment, room in zip(layout.segments, rooms):
        if segment.joined is None:
            room.copy_(pack_segment(segment, leaves))
        else:
            torch.cat(members_of(segment, leaves), out=room)


def segment_view(segment: Segment, buffer: torch.Tensor) -> torch.Tensor:
    """Return the part of a buffer (bytes in the last dimension) that holds a segment, in its dtype."""
    typed = buffer.view(segment.dtype)
    size = segment.dtype.itemsize
    extent = (*typed.shape[:-1], segment.num_bytes // size)
    return typed.as_strided(extent, typed.stride(), typed.storage_offset() + segment.start // size)


def spread(
    layout: Layout,
    segment: Segment,
    values: torch.Tensor,
    *,
    leaves: Sequence[torch.Tensor],
    results: list[torch.Tensor],
) -> None:
    """Cut ``values`` (the leaves of a segment end to end in the last dimension) into ``results``.

    Results of small segments are disjoint views of one memory, which costs a fraction of the time; the
    larger ones have memory of their own, so that keeping one of them does not keep all. None of them lies in
    ``values`` if these are the rows of all ranks.
    """
    shapes = layout.shapes
    if len(segment.leaves) == 1:
        owns_memory = values.untyped_storage().nbytes() == values.nbytes
        pieces: Sequence[torch.Tensor] = (values if owns_memory else values.clone(),)
    elif segment.is_uniform and values.nbytes <= _LARGEST_SHARED_BYTES:
        pieces = _unstacked(segment, values, shapes[segment.leaves[0]])
        if len(pieces) == len(results):
            results[:] = pieces
            return
    elif values.ndim == 1 and values.nbytes <= _LARGEST_SHARED_BYTES:
        pieces = _unflatten_dense_tensors(  # type: ignore[no-untyped-call]
            values, members_of(segment, leaves)
        )
    else:
        pieces = _cut(segment, values)
    for position, piece in zip(segment.leaves, pieces, strict=True):
        results[position] = piece if piece.shape == shapes[position] else piece.reshape(shapes[position])


def _unstacked(segment: Segment, values: torch.Tensor, shape: tuple[int, ...]) -> Sequence[torch.Tensor]:
    """Return the values of leaves of one shape as views of one memory."""
    num_leaves = len(segment.leaves)
    if values.ndim == 2:
        (num_ranks, _), size = values.shape, segment.sizes[0]
        rows = values.as_strided((num_leaves, num_ranks, size), (size, values.stride(0), 1))
        values = rows.clone(memory_format=torch.contiguous_format)
    return values.view(num_leaves, *shape).unbind(0)


def _cut(segment: Segment, values: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the values of each leaf in memory of its own."""
    # torch's annotations describe the variant with `out` only.
    cut: Any = torch.split_with_sizes_copy
    pieces: Sequence[torch.Tensor] = cut(values, segment.sizes, dim=-1)
    return pieces
