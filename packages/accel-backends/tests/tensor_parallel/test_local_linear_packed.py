"""That it trains right is tested with the Accelerator."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from accel_backends.tensor_parallel.local_linear import PackedColwise


def cut(has_bias):
    torch.manual_seed(0)
    whole, layer = nn.Linear(3, 12, bias=has_bias), nn.Linear(3, 12, bias=has_bias)
    layer.load_state_dict(whole.state_dict())
    layer.weight.requires_grad_(False)
    parallelize_module(layer, init_device_mesh("cpu", (2,)), PackedColwise(3), src_data_rank=None)
    rows = torch.randn(2, 3, requires_grad=True)
    same = rows.detach().clone().requires_grad_()
    outputs = layer(rows)
    outputs.sum().backward()
    whole(same).sum().backward()
    assert not layer.weight.requires_grad
    torch.testing.assert_close(rows.grad, same.grad)
    return outputs.detach(), whole(same).detach()


def test_each_rank_computes_its_outputs_of_every_matrix(world):
    for has_bias in (True, False):
        (first, whole), (second, _) = world(2).run(cut, has_bias)
        parts = [part for pair in zip(first.chunk(3, -1), second.chunk(3, -1), strict=True) for part in pair]
        torch.testing.assert_close(torch.cat(parts, -1), whole)
