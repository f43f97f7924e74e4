"""A model as a tree of pieces with their sizes, the basis of automatic device maps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from accel_bigmodel.dtypes import as_dtype, memory_byte_size
from accel_state.enums import CustomDtype


@dataclass(slots=True, eq=False)
class Piece:
    """A module, or a tensor of its own, with its children.

    Args:
        name: Dotted name, ``""`` for the model.
        part: The module or the tensor.
        num_bytes: Size of all its tensors; tied ones count where they occur first.
        buffer_bytes: Size of the buffers among them.
        children: The pieces it splits into; none for a layer.
        tied: Its tensors (by identity) that are tied to others outside.
        parent: The enclosing piece, ``None`` for the model.
        rank: Index of its first layer in the model.
    """

    name: str
    part: nn.Module | torch.Tensor
    num_bytes: int = 0
    buffer_bytes: int = 0
    children: list[Piece] = field(default_factory=list)
    tied: set[int] = field(default_factory=set)
    parent: Piece | None = None
    rank: int = 0

    def layers(self) -> Iterator[Piece]:
        """Yield the layers, in the order of the model."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.layers()


class PieceReader:
    """Builds the tree of a model in one pass."""

    def __init__(
        self,
        *,
        dtype: str | torch.dtype | CustomDtype | None = None,
        special_dtypes: Mapping[str, str | torch.dtype | CustomDtype] | None = None,
        not_split: Sequence[str] = (),
    ) -> None:
        self._dtype = None if dtype is None else as_dtype(dtype)
        self._special = special_dtypes or {}
        self._not_split = frozenset(not_split)
        self._item_bytes: dict[torch.dtype, float] = {}
        self._seen: set[int] = set()
        self._tied: frozenset[int] = frozenset()
        self._num_layers = 0

    def read(self, model: nn.Module) -> Piece:
        """Return the tree of ``model``."""
        counted = Counter(
            id(tensor)
            for module in model.modules()
            for tensor in module._parameters.values()
            if tensor is not None
        )
        self._tied = frozenset(key for key, count in counted.items() if count > 1)
        return self._module("", model, may_split=True)

    def _module(self, name: str, module: nn.Module, *, may_split: bool) -> Piece:
        piece = Piece(name, module, rank=self._num_layers)
        may_split = may_split and type(module).__name__ not in self._not_split
        prefix = f"{name}." if name else ""
        modules = [(key, child) for key, child in module._modules.items() if child is not None]
        may_split = may_split and bool(modules)
        for members, is_buffer in ((module._parameters, False), (module._buffers, True)):
            for key, tensor in members.items():
                if tensor is not None:
                    inner = self._tensor(prefix + key, tensor, is_buffer=is_buffer, is_layer=may_split)
                    self._add(piece, inner, may_split=may_split)
        for key, child in modules:
            inner = self._module(prefix + key, child, may_split=may_split)
            self._add(piece, inner, may_split=may_split)
        if not may_split:
            self._num_layers = piece.rank + 1
        return piece

    @staticmethod
    def _add(piece: Piece, inner: Piece, *, may_split: bool) -> None:
        piece.num_bytes += inner.num_bytes
        piece.buffer_bytes += inner.buffer_bytes
        if inner.tied:
            piece.tied |= inner.tied
        if may_split:
            inner.parent = piece
            piece.children.append(inner)

    def _tensor(self, name: str, tensor: torch.Tensor, *, is_buffer: bool, is_layer: bool) -> Piece:
        piece = Piece(name, tensor, rank=self._num_layers)
        self._num_layers += is_layer
        key = id(tensor)
        if key in self._tied:
            piece.tied.add(key)
        if key not in self._seen:
            self._seen.add(key)
            piece.num_bytes = self._bytes_of(name, tensor)
            piece.buffer_bytes = piece.num_bytes if is_buffer else 0
        return piece

    def _bytes_of(self, name: str, tensor: torch.Tensor) -> int:
        if name in self._special:
            return math.ceil(tensor.numel() * memory_byte_size(as_dtype(self._special[name])))
        stored = tensor.dtype
        if stored not in self._item_bytes:
            is_cast = self._dtype is not None and stored.is_floating_point
            self._item_bytes[stored] = memory_byte_size(self._dtype if is_cast and self._dtype else stored)
        return math.ceil(tensor.numel() * self._item_bytes[stored])
