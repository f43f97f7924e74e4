from __future__ import annotations

import torch
from torch import nn

from accel_backends import select_precision
from accel_state.devices import device_backend


def test_full_precision_changes_nothing():
    precision = select_precision("no", device_backend=device_backend("cpu"))
    model = nn.Linear(2, 2)
    loss = torch.ones((), requires_grad=True)
    assert precision.convert(model) is model
    assert "forward" not in model.__dict__
    assert precision.scale(loss) is loss
    assert (precision.scaler, precision.dtype, precision.state_dict()) == (None, None, {})
    with precision.autocast():
        assert model(torch.ones(1, 2)).dtype is torch.float32


def test_its_step_always_steps_and_runs_closures():
    precision = select_precision("no", device_backend=device_backend("cpu"))
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.grad = torch.ones(1)
    called = []
    assert precision.step(optimizer, lambda: called.append(1)) is True
    assert called == [1]
    assert weight.item() == 0.5
