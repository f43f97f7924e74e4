"""The state of a model as a stream of pieces: the part of each tensor that this rank holds."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from accel_checkpoint.saving.snapshot import is_plain
from accel_ops.shared_tensors import aliases
from accel_state.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Piece:
    """One rank's part of one entry of a state dict.

    Attributes:
        name: Its key.
        local: The part that this rank holds: a plain tensor, or any other value unchanged.
        shape: Global shape of the tensor; empty for other values.
        offset: Start of the part in the global tensor, along each dimension.
        is_writer: Whether this rank writes the part; other ranks may hold replicas.
        aliases: Further keys of the same tensor, such as those of tied weights.
    """

    name: str
    local: Any
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    is_writer: bool = True
    aliases: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether this rank holds the whole tensor."""
        return not isinstance(self.local, Tensor) or tuple(self.local.shape) == self.shape


def pieces_of(state: Mapping[str, Any], *, is_writer: bool) -> Iterator[Piece]:
    """Yield the pieces of a state dict without communication; each shared tensor is yielded once.

    Args:
        state: Tensors, `DTensor`s and other values by name.
        is_writer: Whether this rank writes what every rank holds in full.
    """
    first_of = ties_in(state)
    others: dict[str, tuple[str, ...]] = {}
    for name, first in first_of.items():
        others[first] = (*others.get(first, ()), name)
    for name, value in state.items():
        if name in first_of:
            continue
        if not isinstance(value, Tensor):
            yield Piece(name, value, is_writer=is_writer)
        elif isinstance(value, DTensor):
            yield _piece_of_shard(name, value, others.get(name, ()))
        else:
            shape = tuple(value.shape)
            yield Piece(name, value, shape, (0,) * len(shape), is_writer, others.get(name, ()))


def ties_in(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of tensors that an earlier name has too, with that one.

    Equal parts do not make equal tensors: a `DTensor` is the same only as one of the same shape, mesh and placements.
    """
    alike: dict[Hashable, dict[str, Tensor]] = {}
    for name, value in state.items():
        layout: Hashable = None
        if isinstance(value, DTensor):
            layout, value = (value.shape, value.device_mesh, value.placements), value.to_local()
        if isinstance(value, Tensor) and is_plain(value):
            alike.setdefault(layout, {})[name] = value
    return {name: first for tensors in alike.values() for name, first in aliases(tensors).items()}


def _piece_of_shard(name: str, tensor: DTensor, second_names: tuple[str, ...]) -> Piece:
    """Return this rank's part of a `DTensor`.

    If several ranks hold the same part, the writer is the rank at coordinate 0 of the replicated mesh axes.

    Raises:
        CheckpointError: If the tensor has a placement other than `Shard` and `Replicate`.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    shape, offset = list(tensor.shape), [0] * tensor.dim()
    is_writer = coordinate is not None
    for axis, placement in enumerate(tensor.placements):
        place = 0 if coordinate is None else coordinate[axis]
        if isinstance(placement, Replicate):
            is_writer = is_writer and place == 0
        elif type(placement) is Shard:
            num_parts = tensor.device_mesh.size(axis)
            size = (shape[placement.dim] + num_parts - 1) // num_parts  # full parts first, as torch divides
            begin = min(place * size, shape[placement.dim])
            offset[placement.dim] += begin
            shape[placement.dim] = min(size, shape[placement.dim] - begin)
        else:
            raise CheckpointError(
                f"`{name}` has the placement {placement}, which cannot be saved. Redistribute it to `Shard` or "
                "`Replicate` before saving."
            )
    return Piece(name, tensor.to_local(), tuple(tensor.shape), tuple(offset), is_writer, second_names)
