"""A linear layer whose weight holds several matrices, such as those of query, key and value: each is cut by outputs."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import _StridedShard

from accel_backends.transforms.local_linear import LocalLinear


class PackedColwise(ParallelStyle):
    """Leaves each rank its outputs of every matrix, one after the other; inputs are whole.

    Args:
        num_blocks: Matrices in the weight, of one size.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self._num_blocks = num_blocks

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for key, whole in list(module.named_parameters(recurse=False)):
            placement = _StridedShard(0, split_factor=self._num_blocks)
            cut = distribute_tensor(whole, device_mesh, [placement], src_data_rank=self.src_data_rank)
            module.register_parameter(key, nn.Parameter(cut, requires_grad=whole.requires_grad))
        module.forward = LocalLinear(module.forward, device_mesh)
        return module
