"""A sharded model as one state dict whose tensors are read when they are written: ties once."""

from __future__ import annotations

from functools import partial

import torch

from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.formats.distributed_metadata import Entry
from accel_checkpoint.reading.distributed import DistributedState

_COMPARED = 1024
"""How many values of two tensors are compared before they are compared as a whole."""


def merged_state(saved: DistributedState, *path: str) -> dict[str, object]:
    """Return the state below ``path``: other values as they are, tensors deferred, equal names of one tensor as one.

    Nothing but the values that are no tensors is held in memory. Which weights are tied is known from the table, where
    they lie in one place; other writers store each name on its own, and then equal matrices that are not constant are
    taken to be tied.
    """
    state: dict[str, object] = {}
    by_place: dict[object, DeferredTensor] = {}
    by_beginning: dict[object, tuple[Entry, DeferredTensor]] = {}
    for rest, entry in saved.below(*path):
        name = ".".join(map(str, rest))
        if entry.dtype is None:
            state[name] = saved.value(entry)
            continue
        tensor = by_place.get(entry.chunks) if entry.chunks else None
        if tensor is None:
            beginning = _beginning(saved, entry)
            other = by_beginning.get(beginning)
            if other is not None and torch.equal(saved.value(entry), saved.value(other[0])):
                tensor = other[1]
            else:
                tensor = DeferredTensor(entry.dtype, torch.Size(entry.shape), partial(saved.value, entry))
                if beginning is not None:
                    by_beginning[beginning] = entry, tensor
            by_place[entry.chunks] = tensor
        state[name] = tensor
    return state


def _beginning(saved: DistributedState, entry: Entry) -> object:
    """Return what tied tensors have in common, None for tensors of one dimension or of constant values."""
    if len(entry.shape) < 2 or not entry.chunks:
        return None
    first = saved.first_part(entry).reshape(-1)[:_COMPARED]
    if bool((first == first[0]).all()):
        return None
    return entry.shape, entry.dtype, entry.chunks[0].sizes, first.view(torch.uint8).numpy().tobytes()
