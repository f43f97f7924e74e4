"""The course of every collective on tensors: check, pack, send, unpack."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.agreement.calls import SAME_SHAPES, Call
from accel_ops.agreement.exchange import agree, must_check
from accel_ops.collectives.packing import group_leaves, plain, unpack
from accel_ops.transport import Transport

Groups = list[list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective on tensors.

    Attributes:
        operation: The public function.
        arguments: Plain values that must be equal on all ranks.
        send: Sends groups of leaves and returns for each group the results end to end, ``(..., n)``. The
            leaves of a group are of one kind and on one device; a large leaf is a group of its own.
        shape_of: Returns the shape of the result for a leaf.
        kind_of: Returns what leaves must have in common to be sent as one.
    """

    operation: Callable[..., Any]
    arguments: tuple[Hashable, ...]
    send: Callable[[Groups], Sequence[torch.Tensor]]
    shape_of: Callable[[torch.Tensor], Sequence[int]]
    kind_of: Callable[[torch.Tensor], Hashable] = lambda leaf: leaf.dtype


def run_collective(
    transport: Transport, collective: Collective, data: Any, leaves: Sequence[torch.Tensor], structure: str
) -> list[torch.Tensor]:
    """Run a collective over the leaves of ``data`` and return the results, on the devices of the leaves.

    Raises:
        DistributedOperationException: On every rank, if the ranks differ.
    """
    # With gradients enabled: a view made without them could not be written to by a caller who wants them.
    with transport.lock, torch.enable_grad():
        sent = [_to_transport(transport, plain(leaf)) for leaf in leaves]
        if must_check(transport, sent):
            signature = f"{structure} {[(leaf.dtype, tuple(leaf.shape)) for leaf in sent]}"
            agree(transport, Call(collective.operation, collective.arguments, signature, data, SAME_SHAPES))
        groups = group_leaves(sent, collective.kind_of)
        packed = collective.send([[sent[position] for position in group] for group in groups])
        results = list(sent)
        for group, values in zip(groups, packed, strict=True):
            sizes = [sent[position].numel() for position in group]
            shapes = [collective.shape_of(sent[position]) for position in group]
            for position, result in zip(group, unpack(values, sizes, shapes), strict=True):
                results[position] = result
        return [
            result if result.device == leaf.device else result.to(leaf.device)
            for result, leaf in zip(results, leaves, strict=True)
        ]


def _to_transport(transport: Transport, leaf: torch.Tensor) -> torch.Tensor:
    return leaf.to(transport.device_for(leaf.device))
