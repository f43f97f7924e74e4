from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_ops.named_tensors import named_tensors, tied_names, walk_modules


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.embed.weight
        self.again = self.head
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.empty = None


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_tensor_comes_once_with_all_its_names(device):
    with torch.device(device):
        model = Tied()
    found = {tuple(named.names): named for named in named_tensors(model)}
    assert list(found)[:3] == [
        ("scratch",),
        ("embed.weight", "head.weight", "again.weight"),
        ("norm.weight",),
    ]
    tied = found["embed.weight", "head.weight", "again.weight"]
    assert tied.tensor is model.embed.weight
    assert tied.places == [(model.embed, "weight"), (model.head, "weight")]  # a shared module holds it once
    assert tied.is_parameter
    assert not found["scratch",].is_persistent
    assert not found["norm.running_mean",].is_parameter
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    assert sorted(name for names in found for name in names) == sorted(name for name, _ in every)
    without = named_tensors(model, include_buffers=False)
    assert [named.tensor for named in without] == [
        named.tensor for named in found.values() if named.is_parameter
    ]


def test_ties_are_names_of_one_object_not_equal_values():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].load_state_dict(model[0].state_dict())
    assert tied_names(model) == []
    model[1].weight = model[0].weight
    assert tied_names(model) == [["0.weight", "1.weight"]]


def test_modules_come_in_torchs_order():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.ModuleDict({"a": nn.Identity()}))
    model.append(model[0])
    assert walk_modules(model) == list(model.named_modules(remove_duplicate=False))
