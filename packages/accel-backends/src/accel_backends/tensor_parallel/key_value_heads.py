"""Attention with fewer key-value heads than TP ranks: several ranks compute the same head, each for its queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from accel_backends.tensor_parallel.local_linear import LocalLinear
from accel_backends.tensor_parallel.styles import CutStyle


def with_copied_heads(style: CutStyle, module: nn.Module, parent: nn.Module, *, num_ranks: int) -> CutStyle:
    """Return the style that replicates heads if there are fewer heads than ranks, else ``style``.

    Args:
        style: What the plan says of the layer.
        module: The layer.
        parent: The attention around it. Heads are known where it has ``head_dim`` and ``num_key_value_groups``, the
            heads of queries for each head of keys.
        num_ranks: The number of TP ranks.
    """
    head_dim, group = getattr(parent, "head_dim", None), getattr(parent, "num_key_value_groups", None)
    if not isinstance(module, nn.Linear) or type(head_dim) is not int or type(group) is not int:
        return style
    is_by_outputs = style.dim == 0 and style.uneven and style.num_blocks == 1
    num_heads, rest = divmod(module.out_features, head_dim)
    if not is_by_outputs or rest or num_heads >= num_ranks or num_ranks % num_heads:
        return style
    num_queries = num_heads * group
    others = [one for one in parent.children() if isinstance(one, nn.Linear) and one is not module]
    has_queries = any(one.out_features % (num_queries * head_dim) == 0 for one in others)
    if group == 1 or num_queries % num_ranks or not has_queries:
        return style
    inputs = Shard(1) if style.in_sequence else Replicate()
    return replace(
        style,
        make=lambda: CopiedHeads(num_heads, parent, num_groups=num_queries // num_ranks, inputs=inputs),
        dim=None,
    )


class CopiedHeads(ParallelStyle):
    """Replicates the layer; each rank computes the head that its queries attend to.

    Gradients are summed over the ranks, since each has the part of its own queries.

    Args:
        num_heads: Heads of the layer; they divide the number of ranks.
        parent: The attention around it, whose ``num_key_value_groups`` becomes ``num_groups``.
        num_groups: Query heads per key-value head on a rank.
        inputs: The placement of the inputs.
    """

    def __init__(self, num_heads: int, parent: nn.Module, *, num_groups: int, inputs: Placement) -> None:
        super().__init__()
        self._num_heads = num_heads
        self._parent: Any = parent
        self._num_groups = num_groups
        self._inputs = inputs

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        head_dim = module.get_parameter("weight").shape[0] // self._num_heads
        begin = device_mesh.get_local_rank() * self._num_heads // device_mesh.size() * head_dim
        for key, whole in list(module.named_parameters(recurse=False)):
            copied = distribute_tensor(whole, device_mesh, [Replicate()], src_data_rank=self.src_data_rank)
            module.register_parameter(key, nn.Parameter(copied, requires_grad=whole.requires_grad))
        module.forward = LocalLinear(
            module.forward,
            device_mesh,
            inputs=self._inputs,
            rows=slice(begin, begin + head_dim),
            gradient=[Partial()],
        )
        self._parent.num_key_value_groups = self._num_groups
        return module
