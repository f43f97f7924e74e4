"""Gather: every rank receives the rows of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accel_ops.collectives.packing import flatten, pack, rebuild
from accel_ops.collectives.running import Collective, Groups, run_collective
from accel_ops.transport import current_transport


def gather(tensor: Any) -> Any:
    """Return nested tensors that hold the rows of all ranks, joined along dimension 0 in rank order.

    Every rank must call it, with the same structure, dtypes and shapes (see :func:`pad_across_processes`);
    it blocks until all have. A 0-dim tensor counts as one row: the result has one dimension, of length
    ``world_size``. Results are on the device of the input, in memory of their own, without autograd history.
    With one process the tensors themselves come back.

    Raises:
        TypeError: If a leaf is no dense tensor.
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if the ranks differ; on the CPU always, elsewhere in
            debug mode.
    """
    transport = current_transport()
    leaves, structure = flatten(tensor, user=gather)
    if transport.world_size == 1:
        return rebuild(tensor, (leaf if leaf.ndim else leaf.unsqueeze(0) for leaf in leaves))

    def shape_of(leaf: torch.Tensor) -> Sequence[int]:
        num_rows, *features = leaf.shape or (1,)
        return (transport.world_size * num_rows, *features)

    def send(groups: Groups) -> list[torch.Tensor]:
        return transport.all_gather([pack(group) for group in groups])

    collective = Collective(gather, (), send, shape_of)
    return rebuild(tensor, iter(run_collective(transport, collective, tensor, leaves, structure)))
