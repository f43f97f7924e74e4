from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle

import pytest
import torch
from torch import nn
from transformers.utils import ModelOutput

from accel_backends.autocast_forward import AutocastForward, restore_forward, wrap_forward

SETTINGS = {"device_type": "cpu", "dtype": torch.bfloat16}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = []

    def forward(self, rows, *, scale=1.0):
        output = self.layer(rows) * scale
        self.seen.append(output.dtype)
        return output


class Structured(nn.Module):
    def __init__(self, kind=dict):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, rows):
        return self.kind(rows=self.layer(rows), ids=torch.arange(2), none=None)


class Nested(nn.Module):
    """Calls its own (wrapped) forward again, as recursive and checkpointed models do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.dtypes = []

    def forward(self, rows, depth=1):
        if depth:
            self.forward(rows, depth=depth - 1)
        output = self.layer(rows)
        self.dtypes.append(output.dtype)
        return output


@pytest.fixture
def wrapped():
    model = Net()
    wrap_forward(model, **SETTINGS)
    return model


def test_inside_is_cast_and_outside_is_fp32(wrapped):
    assert wrapped(torch.ones(2, 4)).dtype is torch.float32
    assert wrapped.seen == [torch.bfloat16]
    assert not torch.is_autocast_enabled("cpu")


def test_nested_outputs_come_back_in_fp32_and_the_rest_as_it_is():
    model = Structured()
    wrap_forward(model, **SETTINGS)
    outputs = model(torch.ones(2, 4))
    assert (outputs["rows"].dtype, outputs["ids"].dtype, outputs["none"]) == (
        torch.float32,
        torch.int64,
        None,
    )


def test_fp64_outputs_stay_fp64():
    model = Net().double()
    wrap_forward(model, **SETTINGS, enabled=False)
    assert model(torch.ones(2, 4, dtype=torch.float64)).dtype is torch.float64


def test_a_forward_that_calls_itself_leaves_no_autocast_behind():
    model = Nested()
    wrap_forward(model, **SETTINGS)
    model(torch.ones(2, 4))
    assert model.dtypes == [torch.bfloat16, torch.bfloat16]
    assert not torch.is_autocast_enabled("cpu")


def test_gradients_flow_to_fp32_parameters(wrapped):
    wrapped(torch.ones(2, 4)).sum().backward()
    assert wrapped.layer.weight.grad.dtype is torch.float32
    assert wrapped.layer.bias.grad.tolist() == [2.0] * 4


def test_the_signature_is_that_of_the_users_forward(wrapped):
    assert list(inspect.signature(wrapped.forward).parameters) == ["rows", "scale"]
    assert wrapped.forward.__name__ == "forward"


def test_what_functions_have_is_that_of_the_users_forward(wrapped):
    assert wrapped.forward.__code__ is Net.forward.__code__
    assert wrapped.forward.__kwdefaults__ == {"scale": 1.0}
    with pytest.raises(AttributeError, match="`AutocastForward` has no attribute `__func__`"):
        wrapped.forward.__func__


@pytest.mark.parametrize(
    "capture",
    [
        lambda model, rows: torch.export.export(model, (rows,)).module(),
        lambda model, rows: torch.jit.trace(model, (rows,)),
    ],
    ids=["export", "trace"],
)
def test_a_captured_model_computes_as_the_model_does(capture):
    model, rows = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4)
    wrap_forward(model, **SETTINGS)
    captured = capture(model, rows)
    torch.testing.assert_close(captured(rows), model(rows), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_a_script_is_that_of_the_users_forward():
    model, rows = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4)
    expected = model(rows)
    wrap_forward(model, **SETTINGS)
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(torch.jit.script(one)(rows), expected)
        assert isinstance(one.forward, AutocastForward)


def test_state_dict_is_untouched(wrapped):
    assert list(wrapped.state_dict()) == ["layer.weight", "layer.bias"]


@pytest.mark.parametrize("copied_by", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_compute_the_same_with_their_own_parameters(copied_by):
    model = Structured()
    wrap_forward(model, **SETTINGS)
    copied = copied_by(model)
    with torch.no_grad():
        model.layer.weight.zero_()
        model.layer.bias.zero_()
    assert copied(torch.ones(2, 4))["rows"].dtype is torch.float32
    assert copied(torch.ones(2, 4))["rows"].abs().sum() > 0
    assert copied.forward.original.__self__ is copied


def test_wrapping_twice_wraps_once(wrapped):
    wrap_forward(wrapped, **SETTINGS)
    assert not isinstance(wrapped.forward.original, AutocastForward)


def test_the_original_forward_comes_back(wrapped):
    restore_forward(wrapped)
    assert "forward" not in wrapped.__dict__
    assert wrapped(torch.ones(2, 4)).dtype is torch.float32
    assert wrapped.seen == [torch.float32]


def test_a_forward_that_was_replaced_comes_back_as_it_was():
    model = Net()
    replaced = functools.partial(Net.forward, model, scale=2.0)
    model.forward = replaced
    wrap_forward(model, **SETTINGS)
    restore_forward(model)
    assert model.forward is replaced


def test_restoring_what_was_never_wrapped_changes_nothing():
    model = Net()
    model.forward = model.forward
    restore_forward(model)
    assert "forward" in model.__dict__


@dataclasses.dataclass
class Rows:
    rows: torch.Tensor
    ids: torch.Tensor
    none: None


@dataclasses.dataclass
class RowsOfModel(ModelOutput):
    rows: torch.Tensor | None = None
    ids: torch.Tensor | None = None
    none: None = None


@pytest.mark.parametrize("kind", [dict, Rows, RowsOfModel])
def test_dynamo_traces_through_it_as_one_graph(kind):
    model = Structured(kind)
    wrap_forward(model, **SETTINGS)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    outputs, expected = compiled(torch.ones(2, 4)), model(torch.ones(2, 4))
    assert type(outputs) is kind
    torch.testing.assert_close(vars_of(outputs), vars_of(expected), rtol=0, atol=0)
    assert vars_of(outputs)["rows"].dtype is torch.float32


def vars_of(outputs):
    return dict(outputs) if isinstance(outputs, dict) else vars(outputs)
