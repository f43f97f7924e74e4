from __future__ import annotations

import torch
from torch import nn

from accel_backends.unwrap import (
    innermost,
    is_compiled_module,
    is_container,
    layers,
    register_container,
)


class Engine(nn.Module):
    """A container of some library."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_layers_go_from_the_outside_in():
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    parallel = nn.DataParallel(compiled)
    assert list(layers(parallel)) == [parallel, compiled, model]
    assert innermost(parallel) is model
    assert list(layers(model)) == [model]


def test_a_model_with_an_attribute_called_module_is_no_container():
    model = Engine(nn.Linear(2, 2))
    assert not is_container(model)
    assert innermost(model) is model


class Registered(Engine):
    pass


def test_a_library_registers_its_container():
    model = nn.Linear(2, 2)
    register_container(Registered)
    assert innermost(Registered(model)) is model


def test_only_what_torch_compile_returns_is_a_compiled_module():
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    assert is_compiled_module(compiled)
    assert not is_compiled_module(model)
    assert innermost(compiled) is model
