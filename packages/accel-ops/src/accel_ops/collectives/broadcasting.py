"""Broadcast: every rank receives what one rank has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accel_ops.agreement.calls import Call
from accel_ops.agreement.exchange import must_check
from accel_ops.collectives.checked import CheckedCollectives
from accel_ops.collectives.packing import Bucket, Run, flatten, rebuild
from accel_ops.collectives.running import Collective, run_collective
from accel_ops.transport import Collectives, current_transport
from accel_state.errors import ConfigError


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Return the nested tensors of rank ``from_process`` on every rank.

    Every rank must call it, with the same structure, dtypes and shapes; it blocks until all have. Each rank
    gets its own tensors back; on all ranks but the source they have been overwritten, outside autograd. Only a
    tensor that has several elements in one place, such as an expanded one, is left alone, and a new one returned.

    Raises:
        TypeError: If a leaf is no dense tensor.
        ConfigError: If there is no such rank.
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if the ranks differ; on the CPU always, elsewhere in
            debug mode.
    """
    transport = current_transport()
    check_source(from_process, transport.world_size)
    leaves, structure = flatten(tensor, user=broadcast)
    if transport.world_size == 1:
        return tensor
    is_source = transport.rank == from_process

    def send(
        collectives: Collectives, buckets: list[Bucket], sent: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        buffers = [_packed(bucket, sent) if is_source else _room_for(bucket, sent) for bucket in buckets]
        return collectives.broadcast(buffers, source=from_process)

    collective = Collective(broadcast, (from_process,), send, _in_shape)
    received = run_collective(transport, collective, tensor, leaves, structure)
    if is_source:
        return tensor
    return rebuild(tensor, map(_overwritten, leaves, received))


def _overwritten(leaf: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return ``leaf`` with the elements of ``value``, which may lie in its memory already."""
    if _shares_elements(leaf):
        return value
    with torch.inference_mode(leaf.is_inference()):  # elsewhere such a tensor cannot be written
        if value.data_ptr() != leaf.data_ptr():
            leaf.detach().copy_(value)
        elif not leaf.is_inference():
            torch.autograd.graph.increment_version(leaf)  # a backend writes unseen by autograd
    return leaf


def _shares_elements(leaf: torch.Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(leaf.shape, leaf.stride(), strict=True))


def _in_shape(values: torch.Tensor, run: Run) -> torch.Tensor:
    return values.view(len(run.positions), *run.shape)


def _packed(bucket: Bucket, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    return bucket.pack(leaves, bucket.runs[0].dtype)


def _room_for(bucket: Bucket, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return where to receive: in place if the leaf is sent by itself and lies in one piece."""
    run = bucket.runs[0]
    leaf = leaves[run.positions[0]]
    is_plain = leaf.is_contiguous() and not (leaf.is_conj() or leaf.is_neg() or leaf.is_inference())
    if bucket.is_single and is_plain:
        return leaf.detach().view(-1)
    return torch.empty(bucket.num_elements(), dtype=run.dtype, device=leaf.device)


def broadcast_buffer(buffer: torch.Tensor, *, source: int, operation: Callable[..., Any]) -> torch.Tensor:
    """Return the flat tensor of rank ``source``; elsewhere ``buffer`` may be overwritten.

    For packages that pack their own messages. It is checked like every other operation.

    Args:
        buffer: One-dimensional and contiguous, of the same size and dtype on every rank.
        source: The rank that sends.
        operation: The function to name in messages.

    Raises:
        DistributedOperationException: On every rank, if the ranks differ.
    """
    transport = current_transport()
    if transport.world_size == 1:
        return buffer
    with transport.lock:
        sent = buffer.to(transport.device_for(buffer.device))
        collectives: Collectives = transport
        if must_check(transport, [sent.device]):
            collectives = CheckedCollectives(transport, Call(operation, (source, len(buffer), buffer.dtype)))
        (received,) = collectives.broadcast([sent], source=source)
        return received.to(buffer.device)


def check_source(from_process: int, world_size: int) -> None:
    """Raise ConfigError unless ``from_process`` is a rank."""
    if not 0 <= from_process < world_size:
        raise ConfigError(f"`from_process` must lie between 0 and {world_size - 1}, got {from_process}.")
