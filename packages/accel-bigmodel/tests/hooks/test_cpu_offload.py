from __future__ import annotations

import torch
from torch import nn

from accel_bigmodel import cpu_offload_with_hook
from accel_bigmodel.hooks.base import hooks_of


def test_a_model_moves_when_it_is_called_and_the_one_before_it_goes_back():
    # "meta" plays the accelerator: a model that has been there has no values when it comes back.
    first, hook = cpu_offload_with_hook(nn.Linear(2, 2), "cpu")
    second, second_hook = cpu_offload_with_hook(nn.Linear(2, 2), "meta", prev_module_hook=hook)
    moved = []
    hook.offload = lambda: moved.append("back")
    assert second.weight.device.type == "cpu"
    first(torch.zeros(1, 2))
    assert second(torch.zeros(1, 2)).is_meta
    assert second.weight.is_meta
    assert moved == []  # it was on the CPU anyway
    hook.model = nn.Linear(2, 2, device="meta")
    second(torch.zeros(1, 2))
    assert moved == ["back"]
    second_hook.remove()
    assert not hooks_of(second)


def test_the_hook_sends_the_model_back():
    model, hook = cpu_offload_with_hook(nn.Linear(2, 2), "cpu")
    model(torch.zeros(1, 2))
    hook.offload()
    assert model.weight.device.type == "cpu"
