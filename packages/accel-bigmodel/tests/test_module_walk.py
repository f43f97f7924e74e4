from __future__ import annotations

from torch import nn

from accel_bigmodel.module_walk import walk


def test_it_finds_what_torch_finds_in_the_same_order():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.LSTM(2, 2)))
    model.again = model[1]
    model.none = None
    model.register_module("empty", None)
    assert walk(model) == list(model.named_modules(remove_duplicate=False))
    assert walk(model[0]) == [("", model[0])]
