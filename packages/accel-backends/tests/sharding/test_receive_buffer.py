from __future__ import annotations

import torch
from torch import nn

from accel_backends.sharding.receive_buffer import ReceiveBuffer
from accel_ops.named_tensors import named_tensors


def test_groups_lie_in_the_same_memory_one_after_the_other():
    first = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1).bfloat16()).to("meta")
    second = nn.Linear(7, 2).to("meta")
    groups = [named_tensors(first), named_tensors(second)]
    buffer = ReceiveBuffer(groups, device=torch.device("cpu"))
    storages = set()
    for model, group in zip((first, second), groups, strict=True):
        described = [(found.tensor.shape, found.tensor.dtype) for found in group]
        buffer.lend(group)
        assert [(one.shape, one.dtype) for one in model.parameters()] == described
        with torch.no_grad():
            for index, parameter in enumerate(model.parameters()):
                parameter.fill_(index)
        assert all(bool((one == index).all()) for index, one in enumerate(model.parameters()))
        assert all(one.data_ptr() % 64 == 0 and one.requires_grad for one in model.parameters())
        storages |= {one.untyped_storage().data_ptr() for one in model.parameters()}
    assert len(storages) == 1


def test_parameters_that_have_values_keep_them():
    model = nn.Linear(3, 5)
    kept = list(model.parameters())
    buffer = ReceiveBuffer([named_tensors(model)], device=torch.device("cpu"))
    buffer.lend(named_tensors(model))
    assert all(one is other for one, other in zip(model.parameters(), kept, strict=True))
