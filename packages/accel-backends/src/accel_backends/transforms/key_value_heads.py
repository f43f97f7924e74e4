"""Attention with fewer heads for keys and values than ranks: several ranks compute one, each for its queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from accel_backends.transforms.local_linear import LocalLinear
from accel_backends.transforms.tensor_styles import CutStyle


def with_copied_heads(style: CutStyle, module: nn.Module, parent: nn.Module, *, num_ranks: int) -> CutStyle:
    """Return the style by which ranks compute copies of heads if there are fewer heads than ranks, else ``style``.

    Args:
        style: What the plan says of the layer.
        module: The layer.
        parent: The attention around it. Heads are known where it has ``head_dim`` and ``num_key_value_groups``, the
            heads of queries for each head of keys.
        num_ranks: Ranks that share the layer.
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
    """Every rank keeps the whole layer, and computes the head that its queries attend to.

    The gradient is the sum of those of all ranks, as each has that of its own queries.

    Args:
        num_heads: Heads of the layer; they divide the number of ranks.
        parent: The attention around it, which is told ``num_groups``.
        num_groups: Heads of queries that a rank has for its one head.
        inputs: How the ranks hold the inputs.
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
