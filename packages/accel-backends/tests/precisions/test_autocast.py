from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends import AcceleratedOptimizer, AutocastKwargs, collect, select_precision
from accel_state.devices import device_backend

CPU = device_backend("cpu")


def test_bf16_needs_no_scaler():
    precision = select_precision("bf16", device_backend=CPU)
    loss = torch.ones((), requires_grad=True)
    assert (precision.scaler, precision.dtype) == (None, torch.bfloat16)
    assert precision.scale(loss) is loss


def test_autocast_casts_as_the_run_specifies_and_as_a_handler_specifies():
    precision = select_precision("bf16", device_backend=CPU)
    layer = nn.Linear(2, 2)
    with precision.autocast():
        assert layer(torch.ones(1, 2)).dtype is torch.bfloat16
    with precision.autocast(AutocastKwargs(enabled=False)):
        assert layer(torch.ones(1, 2)).dtype is torch.float32


def test_a_handler_of_the_run_reaches_the_forward():
    off = collect([AutocastKwargs(enabled=False)])
    precision = select_precision("bf16", device_backend=CPU, handlers=off)
    model = nn.Linear(2, 2)
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    layer = nn.Sequential(model)
    precision.convert(layer)
    layer(torch.ones(1, 2))
    assert seen == [torch.float32]


def test_conversion_reaches_the_model_inside_a_compiled_module():
    precision = select_precision("bf16", device_backend=CPU)
    inner = nn.Sequential(nn.Linear(2, 2))
    compiled = torch.compile(inner, backend="eager")
    compiled(torch.ones(1, 2))
    assert precision.convert(compiled) is compiled
    assert "forward" in inner.__dict__
    plain = nn.Sequential(inner[0])
    torch.testing.assert_close(compiled(torch.ones(1, 2)), precision.convert(plain)(torch.ones(1, 2)))


def test_a_small_model_trains():
    precision = select_precision("bf16", device_backend=CPU)
    torch.manual_seed(0)
    model = precision.convert(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    rows = torch.randn(64, 4)
    target = rows.sum(dim=1, keepdim=True)
    losses = []
    for _ in range(80):
        loss = (model(rows) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@pytest.fixture
def prepared(fresh_state):
    """A model and its optimizer in an autocast around all that the test does."""
    precision = select_precision("bf16", device_backend=CPU)
    model = precision.convert(nn.Sequential(nn.Linear(1, 1, bias=False)))
    nn.init.ones_(model[0].weight)
    with precision.autocast():
        yield model, AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))


def test_an_autocast_around_several_steps_casts_the_weights_of_each(prepared):
    model, optimizer = prepared
    rows, outputs = torch.ones(1, 1), []
    for _ in range(3):
        output = model[0](rows)  # without the forward that was prepared
        output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output.item())
    assert outputs == [1.0, 0.5, 0.0]


def test_a_prepared_forward_uses_weights_that_were_exchanged_within_an_autocast(prepared):
    model, _ = prepared
    outputs = []
    for value in (2.0, 3.0):
        with torch.no_grad():
            model[0].weight.fill_(value)
        outputs.append(model(torch.ones(1, 1)).item())
        model[0](torch.ones(1, 1))
    assert outputs == [2.0, 3.0]


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_a_forward_without_gradients_leaves_none_without_within_an_autocast(prepared, guard):
    model, _ = prepared
    with guard():
        model(torch.ones(1, 1))
    assert model[0](torch.ones(1, 1)).requires_grad
