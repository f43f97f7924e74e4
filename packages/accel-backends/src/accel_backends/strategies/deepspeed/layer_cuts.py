"""How DeepSpeed has cut the parameters of a model over the ranks that share its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel_state.errors import CheckpointError

_MARK = "ds_autotp_universal_checkpoint_meta"
"""The attribute of a parameter in which DeepSpeed says how it has cut it (its `DS_AUTOTP_UC_META`)."""


@dataclass(frozen=True, slots=True)
class LayerCut:
    """This rank's part of one parameter, and how the parts make up the whole.

    Attributes:
        pieces: DeepSpeed's `ParamAffineMap` of the parameter.
        group: The ranks that share it.
    """

    pieces: Any
    group: Any

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole."""
        return torch.Size(self.pieces.logical_shape)

    @property
    def own_shape(self) -> torch.Size:
        """The shape of this rank's part."""
        return torch.Size(self.pieces.shard_shapes[dist.get_rank(self.group)])

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Return the whole of this rank's part, or of a tensor like it. Communicates: the ranks that share it."""
        rank = dist.get_rank(self.group)
        own = own.detach().contiguous()
        whole = own.new_zeros(self.shape.numel())
        flat = own.clone().view(-1) if own.storage_offset() else own.view(-1)
        for piece in self.pieces.pieces_by_rank[rank]:
            if rank == min(piece.locations):
                piece.source_view(whole).copy_(piece.dest_view(flat))
        # Bytes, of which all but one rank have zeros: any number format comes out as it went in.
        dist.all_reduce(whole.view(torch.uint8), group=self.group)
        return whole.view(self.shape)

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a whole. No communication."""
        part: torch.Tensor = self.pieces.extract(whole, dist.get_rank(self.group))
        return part


def num_sharing() -> int:
    """Return how many ranks DeepSpeed lets share layers now; 1 where none do."""
    from deepspeed.utils import groups

    group = groups._TENSOR_MODEL_PARALLEL_GROUP
    return 1 if group is None else dist.get_world_size(group)


def is_cut(model: nn.Module) -> bool:
    """Tell whether DeepSpeed has cut any parameter of a model."""
    return any(hasattr(parameter, _MARK) for parameter in model.parameters())


def cuts_of(model: nn.Module) -> dict[str, LayerCut]:
    """Return how parameters of a model are cut, by name; those that every rank has whole are left out.

    Raises:
        CheckpointError: If DeepSpeed does not say how it has cut one.
    """
    if not is_cut(model):
        return {}
    try:
        from deepspeed.checkpoint.affine import ParamAffineMap
    except ImportError as error:
        raise CheckpointError(
            "Full tensors of `tp_size` need a newer DeepSpeed. Run `pip install 'deepspeed>=0.19.7'`, or use FSDP."
        ) from error
    from deepspeed.utils import groups

    cuts = {}
    for name, parameter in model.named_parameters():
        told = getattr(parameter, _MARK, {"replicated": True})
        if told["replicated"]:
            continue
        pieces = told["conversion"].get("affine_map")
        if pieces is None:
            reason = told["conversion"]["unsupported_reason"]
            raise CheckpointError(
                f"`{name}` cannot be put together from the parts of the ranks that share it: {reason}. Train without "
                "`tp_size`, or share layers by FSDP."
            )
        cuts[name] = LayerCut(ParamAffineMap.from_dict(pieces), groups.get_tensor_model_parallel_group())
    return cuts
