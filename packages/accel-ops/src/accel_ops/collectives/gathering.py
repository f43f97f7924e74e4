"""Gather: every rank receives the rows of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accel_ops.collectives.packing import Bucket, Run, flatten, rebuild
from accel_ops.collectives.running import Collective, run_collective
from accel_ops.transport import Collectives, current_transport


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

    def send(
        collectives: Collectives, buckets: list[Bucket], sent: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        return collectives.all_gather([bucket.pack(sent, bucket.runs[0].dtype) for bucket in buckets])

    def finish(rows: torch.Tensor, run: Run) -> torch.Tensor:
        num_rows, *features = run.shape or (1,)
        return rows.transpose(0, 1).reshape(rows.shape[1], transport.world_size * num_rows, *features)

    collective = Collective(gather, (), send, finish)
    return rebuild(tensor, iter(run_collective(transport, collective, tensor, leaves, structure)))
