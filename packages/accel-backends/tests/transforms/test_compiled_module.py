from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from accel_backends.transforms.compiled_module import compile_module


@pytest.fixture(autouse=True)
def no_limit_is_reached():
    # torch compiles the same code, here that of `nn.Sequential`, eight times in a process and then no more.
    torch._dynamo.reset()


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_it_is_what_torch_compile_makes(model):
    compiled = compile_module(model, backend="eager")
    assert isinstance(compiled, torch._dynamo.OptimizedModule)
    assert type(compiled).__name__ == "OptimizedModule"  # which programs compare
    assert compiled._orig_mod is model
    rows = torch.randn(4, 2)
    torch.testing.assert_close(compiled(rows), copy.deepcopy(model)(rows))


def test_it_is_really_compiled(model):
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compile_module(model, backend=counting)(torch.randn(4, 2))
    assert len(graphs) == 1


def test_keys_are_those_of_the_original(model):
    compiled = compile_module(model, backend="eager")
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert list(nn.Sequential(compiled).state_dict(prefix="p.")) == [
        f"p.0.{key}" for key in model.state_dict()
    ]


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
@pytest.mark.parametrize("depth", [0, 1])
def test_both_kinds_of_keys_are_loaded(model, prefix, depth):
    compiled = compile_module(model, backend="eager")
    target = nn.Sequential(compiled) if depth else compiled
    outer = "0." if depth else ""
    state = {f"{outer}{prefix}{key}": value + 1 for key, value in model.state_dict().items()}
    expected = {key: value + 1 for key, value in copy.deepcopy(model.state_dict()).items()}
    assert target.load_state_dict(state) == ([], [])
    for key, value in model.state_dict().items():
        assert torch.equal(value, expected[key])


def test_what_is_missing_or_too_much_is_still_reported(model):
    compiled = compile_module(model, backend="eager")
    result = compiled.load_state_dict({"0.weight": model[0].weight, "stranger": torch.ones(1)}, strict=False)
    # BatchNorm makes up for a missing num_batches_tracked itself.
    assert result.missing_keys == ["0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert result.unexpected_keys == ["stranger"]


def test_copies_keep_their_keys(model):
    copied = copy.deepcopy(compile_module(model, backend="eager"))
    assert list(copied.state_dict()) == list(model.state_dict())
    assert copied._orig_mod[0].weight is not model[0].weight


def test_a_disabled_compiler_gives_back_the_module(model):
    assert compile_module(model, backend="eager", disable=True) is model
