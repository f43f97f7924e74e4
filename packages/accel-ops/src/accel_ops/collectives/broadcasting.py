"""Broadcast: every rank receives what one rank has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accel_ops.agreement.calls import Call
from accel_ops.agreement.exchange import agree, must_check
from accel_ops.collectives.packing import Bucket, Run, flatten, rebuild
from accel_ops.collectives.running import Collective, run_collective
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Return the nested tensors of rank ``from_process`` on every rank.

    Every rank must call it, with the same structure, dtypes and shapes; it blocks until all have. The source
    gets its own tensors back; the others get new ones, on the device of their input, and keep theirs
    unchanged. No autograd history.

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

    def send(buckets: list[Bucket], sent: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        buffers = [_packed(bucket, sent) if is_source else _room_for(bucket, sent) for bucket in buckets]
        return transport.broadcast(buffers, source=from_process)

    collective = Collective(broadcast, (from_process,), send, _in_shape)
    results = run_collective(transport, collective, tensor, leaves, structure)
    return tensor if is_source else rebuild(tensor, iter(results))


def _in_shape(values: torch.Tensor, run: Run) -> torch.Tensor:
    return values.view(len(run.positions), *run.shape)


def _packed(bucket: Bucket, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    return bucket.pack(leaves, bucket.runs[0].dtype)


def _room_for(bucket: Bucket, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    run = bucket.runs[0]
    return torch.empty(bucket.num_elements(), dtype=run.dtype, device=leaves[run.positions[0]].device)


def broadcast_buffer(buffer: torch.Tensor, *, source: int, operation: Callable[..., Any]) -> torch.Tensor:
    """Return the flat tensor of rank ``source``; elsewhere ``buffer`` is overwritten.

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
        if must_check(transport, [sent.device]):
            agree(transport, Call(operation, (source, len(buffer))))
        (received,) = transport.broadcast([sent], source=source)
        return received.to(buffer.device)


def check_source(from_process: int, world_size: int) -> None:
    """Raise ConfigError unless ``from_process`` is a rank."""
    if not 0 <= from_process < world_size:
        raise ConfigError(f"`from_process` must lie between 0 and {world_size - 1}, got {from_process}.")
