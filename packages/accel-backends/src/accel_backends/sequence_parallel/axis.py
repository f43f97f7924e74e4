"""The axis of a run along which ranks share sequences, and what it does with models and loaders."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.plans.plan import ParallelPlan
from accel_backends.sequence_parallel.attaching import share_attention
from accel_backends.sequence_parallel.cut import SequenceCut
from accel_backends.sequence_parallel.loader import SequencePart
from accel_backends.sequence_parallel.sharing import SequenceSharing
from accel_backends.sequence_parallel.tokens import Exchange
from accel_state.mesh_layout import MeshLayout
from accel_state.parallelism_config import ParallelismConfig, TorchContextParallelConfig

_EXCHANGES: dict[str | None, Exchange] = {"allgather": Exchange.KEYS, "alltoall": Exchange.KEYS_TWICE}


@dataclass(frozen=True, slots=True)
class SequenceAxis:
    """How the ranks of an axis share sequences.

    Attributes:
        sharing: Which sequences are shared now.
        cuts_batches: Prepared loaders give each rank its part.
        pads: They pad sequences that cannot be cut.
    """

    sharing: SequenceSharing
    cuts_batches: bool
    pads: bool

    def attach(self, model: nn.Module, plan: ParallelPlan) -> None:
        """Let ``model`` compute shared sequences; see `share_attention`."""
        share_attention(model, plan, self.sharing)

    def shard_buffers(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], *, no_restore: Set[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """Return a context in which ``buffers`` are this rank's part of them."""
        return self.sharing.cutting(buffers, dims, no_restore)

    def wrap_loader(self, loader: Any) -> SequencePart:
        """Return a loader of this rank's part of each sequence; one that is such already, as it is."""
        if isinstance(loader, SequencePart):
            return loader
        return SequencePart(
            loader,
            cut=self.sharing.cut,
            setting=self.sharing.setting,
            pads=self.pads,
            during=self.sharing.during,
        )


def sequence_axis(layout: MeshLayout, config: ParallelismConfig | None, *, rank: int) -> SequenceAxis | None:
    """Return the axis of a run, None if each rank has sequences of its own. All ranks together."""
    if layout.sp > 1:
        return SequenceAxis(
            SequenceSharing(
                SequenceCut(layout.sp, layout.index(rank, "sp")),
                _group_of(layout, rank, "sp"),
                setting="sp_size",
                exchange=Exchange.HEADS,
            ),
            cuts_batches=True,
            pads=True,
        )
    if layout.cp == 1:
        return None
    handler = (config.cp_handler if config is not None else None) or TorchContextParallelConfig()
    cut = SequenceCut(layout.cp, layout.index(rank, "cp"), is_balanced=handler.is_balanced)
    return SequenceAxis(
        SequenceSharing(
            cut,
            _group_of(layout, rank, "cp"),
            setting="cp_size",
            exchange=_EXCHANGES[handler.cp_comm_strategy],
        ),
        cuts_batches=handler.cuts_batches,
        pads=handler.indivisible == "pad",
    )


def _group_of(layout: MeshLayout, rank: int, axis: str) -> dist.ProcessGroup:
    """Return the ranks that this one shares ``axis`` with, which make the group without the others."""
    group: dist.ProcessGroup = dist.new_group(
        list(layout.group_of(rank, axis)), use_local_synchronization=True
    )
    return group
