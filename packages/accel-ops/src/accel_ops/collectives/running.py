"""The course of every collective on tensors: check, pack, send, unpack."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.agreement.calls import SAME_SHAPES, Call
from accel_ops.agreement.exchange import must_check
from accel_ops.collectives.checked import CheckedCollectives
from accel_ops.collectives.packing import Bucket, Run, make_buckets
from accel_ops.transport import Collectives, Transport


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective on tensors.

    Attributes:
        operation: The public function.
        arguments: Plain values that must be equal on all ranks.
        send: Sends buckets of the given leaves by one call of the given collectives, and returns what arrived
            for each bucket, ``(..., n)``.
        finish: Turns what arrived for the leaves of a run, ``(..., num_leaves, n)``, into their results,
            ``(num_leaves, *shape)``.
        kind: Returns what leaves must have in common to be sent as one.
    """

    operation: Callable[..., Any]
    arguments: tuple[Hashable, ...]
    send: Callable[[Collectives, list[Bucket], Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    finish: Callable[[torch.Tensor, Run], torch.Tensor]
    kind: Callable[[torch.Tensor], Hashable] = lambda leaf: leaf.dtype


def run_collective(
    transport: Transport, collective: Collective, data: Any, leaves: Sequence[torch.Tensor], structure: str
) -> list[torch.Tensor]:
    """Run a collective over the leaves of ``data`` and return the results, on the devices of the leaves.

    Raises:
        DistributedOperationException: On every rank, if the ranks differ.
    """
    with transport.lock:
        devices = {device: transport.device_for(device) for device in {leaf.device for leaf in leaves}}
        is_moved = any(device != served for device, served in devices.items())
        sent = [leaf.to(devices[leaf.device]) for leaf in leaves] if is_moved else leaves
        buckets = make_buckets(sent, collective.kind)
        collectives: Collectives = transport
        if must_check(transport, devices.values()):
            runs = [(run.dtype, tuple(run.shape), run.positions) for bucket in buckets for run in bucket.runs]
            call = Call(collective.operation, collective.arguments, f"{structure} {runs}", data, SAME_SHAPES)
            collectives = CheckedCollectives(transport, call)
        results = list(sent)
        for bucket, values in zip(buckets, collective.send(collectives, buckets, sent), strict=True):
            bucket.unpack(values, collective.finish, results)
        if is_moved:
            return [result.to(leaf.device) for result, leaf in zip(results, leaves, strict=True)]
        return results
