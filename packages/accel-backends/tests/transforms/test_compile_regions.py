from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from accel_backends import (
    compile_regions,
    has_compiled_regions,
    is_compiled_module,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows):
        return rows + torch.tanh(self.layer(rows))


class Net(nn.Module):
    def __init__(self, num_blocks=4):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.0)
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, rows):
        rows = self.dropout(self.stem(rows))
        for block in self.blocks:
            rows = block(rows)
        return self.body(rows)


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        return graph.forward


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("num_blocks", [2, 6])
def test_equal_blocks_are_compiled_once_however_many(num_blocks):
    torch._dynamo.reset()
    backend = Counting()
    compiled = compile_regions(Net(num_blocks), backend=backend)
    compiled(torch.randn(3, 4))
    blocks = [graph for graph in backend.graphs if "tanh" in graph.code]
    assert len(blocks) == 1
    assert len(backend.graphs) == 3  # the blocks, the stem and the body


def test_outputs_and_gradients_are_those_of_the_original(model):
    compiled = compile_regions(model, backend="aot_eager")
    rows = torch.randn(3, 4)
    compiled(rows).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    expected = model(rows)
    expected.sum().backward()
    torch.testing.assert_close(compiled(rows), expected)
    for ours, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad)


def test_the_original_stays_as_it_is(model):
    compiled = compile_regions(model, backend="eager")
    assert type(compiled) is Net
    assert compiled is not model
    assert compiled._orig_mod is model
    assert not any(is_compiled_module(part) for part in model.modules())
    assert all(is_compiled_module(block) for block in compiled.blocks)
    assert is_compiled_module(compiled.stem)
    assert is_compiled_module(compiled.body)
    assert type(compiled.dropout) is nn.Dropout
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]


def test_state_dict_keys_are_unharmed_both_ways(model):
    compiled = compile_regions(model, backend="eager")
    assert list(compiled.state_dict()) == list(model.state_dict())
    zeros = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    assert compiled.load_state_dict(zeros) == ([], [])
    assert all(not parameter.any() for parameter in model.parameters())


def test_training_mode_reaches_all_parts(model):
    compiled = compile_regions(model, backend="eager")
    compiled.eval()
    assert not any(part.training for part in compiled.modules())


def test_compiled_regions_are_distinguished_from_a_whole_compilation(model):
    assert has_compiled_regions(compile_regions(model, backend="eager"))
    assert not has_compiled_regions(model)
    assert not has_compiled_regions(torch.compile(model, backend="eager"))


def test_a_model_without_repeated_blocks_is_compiled_as_a_whole():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    compiled = compile_regions(model, backend="eager")
    assert is_compiled_module(compiled)
    assert compiled._orig_mod is model


def test_a_copy_of_a_regional_model_has_its_own_parameters(model):
    compiled = copy.deepcopy(compile_regions(model, backend="eager"))
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert {id(p) for p in compiled.parameters()}.isdisjoint({id(p) for p in model.parameters()})
    rows = torch.randn(3, 4)
    torch.testing.assert_close(compiled(rows), model(rows))
