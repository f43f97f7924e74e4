from __future__ import annotations

import torch
from torch import nn

from accel_bigmodel.loading.filling import extra_states, targets

CPU = torch.device("cpu")


class Counting(nn.Linear):
    def get_extra_state(self):
        return {"count": 1}


def test_targets_are_the_names_of_the_state_dict():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), Counting(2, 2))
    model.register_buffer("lost", torch.zeros(1), persistent=False)
    assert set(targets(model)) | set(extra_states(model)) == set(model.state_dict())
    assert extra_states(model) == {"2._extra_state": model[2]}


def test_tied_names_share_a_target_and_are_filled_together():
    model = nn.Sequential(nn.Linear(2, 2, device="meta"), nn.Linear(2, 2, device="meta"))
    model[1].weight = model[0].weight
    target = targets(model)["0.weight"]
    assert target is targets(model)["0.weight"] or target.names == ["0.weight", "1.weight"]
    target.fill(torch.ones(2, 2), device=CPU, dtype=torch.float32)
    assert model[0].weight is model[1].weight
    assert model[0].weight.tolist() == [[1, 1], [1, 1]]


def test_a_tensor_that_stays_where_it_is_is_filled_in_place():
    linear = nn.Linear(2, 2)
    before = linear.weight
    targets(linear)["weight"].fill(torch.ones(2, 2, dtype=torch.float64), device=CPU, dtype=torch.float32)
    assert linear.weight is before
    assert before.tolist() == [[1, 1], [1, 1]]


def test_a_replaced_parameter_keeps_what_it_is():
    linear = nn.Linear(2, 2, device="meta").requires_grad_(False)
    linear.bias.requires_grad_(True)
    linear.bias.note = "kept"
    for name in ("weight", "bias"):
        targets(linear)[name].fill(
            torch.ones(linear.get_parameter(name).shape), device=CPU, dtype=torch.float16
        )
    assert (linear.weight.requires_grad, linear.bias.requires_grad, linear.bias.note) == (False, True, "kept")
    assert (linear.weight.dtype, type(linear.weight)) == (torch.float16, nn.Parameter)


def test_the_value_is_copied_and_not_kept():
    linear, value = nn.Linear(2, 2, device="meta"), torch.ones(2, 2)
    targets(linear)["weight"].fill(value, device=CPU, dtype=torch.float32)
    value.zero_()
    assert linear.weight.tolist() == [[1, 1], [1, 1]]


def test_buffers_are_replaced_as_buffers():
    norm = nn.BatchNorm1d(2, device="meta")
    targets(norm)["running_mean"].fill(torch.ones(2), device=CPU, dtype=torch.float32)
    assert dict(norm.named_buffers())["running_mean"].tolist() == [1, 1]
    assert "running_mean" not in dict(norm.named_parameters())
