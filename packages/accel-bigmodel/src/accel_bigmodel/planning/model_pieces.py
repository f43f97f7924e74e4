"""A model as a tree of pieces with their sizes, the basis of automatic device maps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from accel_bigmodel.dtypes import as_dtype, memory_byte_size
from accel_ops.named_tensors import walk_modules
from accel_state.enums import CustomDtype


@dataclass(slots=True, eq=False)
class Piece:
    """A module with its children, or a single tensor.

    Args:
        name: Dotted name, ``""`` for the model.
        rank: Index of its first layer in the model.
        num_bytes: Size of all its tensors; tied tensors count at their first occurrence.
        buffer_bytes: Size of the buffers among them.
        loaded_bytes: Largest total size of the direct tensors of one of its modules: hooks load them together.
        children: The pieces that it can be split into; none for a layer.
        tied: Its tensors (by identity) that are tied to tensors elsewhere.
        parent: The enclosing piece, ``None`` for the model.
    """

    name: str
    rank: int
    num_bytes: int = 0
    buffer_bytes: int = 0
    loaded_bytes: int = 0
    children: Sequence[Piece] = ()
    tied: frozenset[int] = frozenset()
    parent: Piece | None = None

    def add(self, num_bytes: int, buffer_bytes: int, tied: frozenset[int]) -> None:
        """Count a part."""
        self.num_bytes += num_bytes
        self.buffer_bytes += buffer_bytes
        if tied:
            self.tied |= tied

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
        modules = {id(module): module for _, module in walk_modules(model)}.values()
        counted = Counter([id(tensor) for module in modules for tensor in module._parameters.values()])
        del counted[id(None)]
        self._tied = frozenset(key for key, count in counted.items() if count > 1)
        return self._module("", model, may_split=True)

    def _module(self, name: str, module: nn.Module, *, may_split: bool) -> Piece:
        piece, children = Piece(name, self._num_layers), list[Piece]()
        prefix = f"{name}." if name else ""
        modules = [(key, child) for key, child in module._modules.items() if child is not None]
        may_split = may_split and bool(modules) and type(module).__name__ not in self._not_split
        for members, is_buffer in ((module._parameters, False), (module._buffers, True)):
            for key, tensor in members.items():
                if tensor is None:
                    continue
                identity = id(tensor)
                num_bytes = 0 if identity in self._seen else self._bytes_of(prefix + key, tensor)
                self._seen.add(identity)
                tied = frozenset((identity,)) if identity in self._tied else frozenset()
                piece.add(num_bytes, num_bytes if is_buffer else 0, tied)
                if may_split:
                    children.append(Piece(prefix + key, self._num_layers))
                    children[-1].add(num_bytes, num_bytes if is_buffer else 0, tied)
                    children[-1].loaded_bytes = num_bytes
                    self._num_layers += 1
        piece.loaded_bytes = piece.num_bytes
        for key, child in modules:
            children.append(self._module(prefix + key, child, may_split=may_split))
            piece.add(children[-1].num_bytes, children[-1].buffer_bytes, children[-1].tied)
            piece.loaded_bytes = max(piece.loaded_bytes, children[-1].loaded_bytes)
        if may_split:
            piece.children = children
            for inner in children:
                inner.parent = piece
        else:
            self._num_layers = piece.rank + 1
        return piece

    def _bytes_of(self, name: str, tensor: torch.Tensor) -> int:
        if name in self._special:
            return math.ceil(tensor.numel() * memory_byte_size(as_dtype(self._special[name])))
        stored = tensor.dtype
        if stored not in self._item_bytes:
            is_cast = self._dtype is not None and stored.is_floating_point
            self._item_bytes[stored] = memory_byte_size(self._dtype if is_cast and self._dtype else stored)
        return math.ceil(tensor.numel() * self._item_bytes[stored])
