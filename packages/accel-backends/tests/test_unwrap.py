from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends import compile_regions, extract_model_from_parallel, has_compiled_regions
from accel_backends.autocast_forward import AutocastForward, wrap_forward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, rows):
        for block in self.blocks:
            rows = block(rows)
        return rows


@pytest.fixture
def model():
    return Net()


def test_a_plain_model_comes_back(model):
    assert extract_model_from_parallel(model) is model


def test_the_model_inside_a_container_comes_back(model):
    container = nn.DataParallel(model)
    assert extract_model_from_parallel(container) is model
    assert container.module is model


def test_the_mixed_precision_wrapper_stays_unless_it_is_to_go(model):
    wrap_forward(model, device_type="cpu", dtype=torch.bfloat16)
    container = nn.DataParallel(model)
    assert isinstance(extract_model_from_parallel(container).forward, AutocastForward)
    assert extract_model_from_parallel(container, keep_fp32_wrapper=False) is model
    assert "forward" not in model.__dict__


def test_compilation_stays_unless_it_is_to_go(model):
    compiled = torch.compile(model, backend="eager")
    container = nn.DataParallel(compiled)
    assert extract_model_from_parallel(compiled) is compiled
    assert extract_model_from_parallel(container) is compiled
    assert extract_model_from_parallel(compiled, keep_torch_compile=False) is model
    assert extract_model_from_parallel(container, keep_torch_compile=False) is model
    assert container.module is compiled


def test_a_compiled_container_gives_a_compiled_model_and_stays_as_it_is(model):
    container = nn.DataParallel(model)
    compiled = torch.compile(container, backend="eager")
    inner = extract_model_from_parallel(compiled)
    assert inner._orig_mod is model
    assert inner.dynamo_ctx is compiled.dynamo_ctx
    assert compiled._orig_mod is container
    assert extract_model_from_parallel(compiled, keep_torch_compile=False) is model


@pytest.mark.parametrize("keep_torch_compile", [True, False])
def test_a_model_that_was_compiled_in_place_is_returned_with_its_compiled_forward(model, keep_torch_compile):
    container = nn.DataParallel(compile_regions(model, backend="eager"))
    assert extract_model_from_parallel(container, keep_torch_compile=keep_torch_compile) is model
    assert has_compiled_regions(model)
    with torch.compiler.set_stance("force_eager"):
        assert model(torch.ones(1, 2)).shape == (1, 2)


def test_the_original_forward_comes_back_under_compilation(model):
    wrap_forward(model, device_type="cpu", dtype=torch.bfloat16)
    compiled = torch.compile(model, backend="eager")
    assert extract_model_from_parallel(compiled, keep_fp32_wrapper=False) is compiled
    assert "forward" not in model.__dict__


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = nn.DataParallel(inner)
        self.head = nn.Linear(2, 2)


def test_containers_inside_stay_unless_all_are_to_go(model):
    outer = Outer(model)
    assert extract_model_from_parallel(outer) is outer
    opened = extract_model_from_parallel(nn.DataParallel(outer), recursive=True)
    assert type(opened) is Outer
    assert opened.inner is model
    assert opened.head is outer.head
    assert isinstance(outer.inner, nn.DataParallel)
    expected = [f"inner.{key}" for key in model.state_dict()] + ["head.weight", "head.bias"]
    assert list(opened.state_dict()) == expected


def test_compiled_parts_are_opened_too_when_compilation_is_to_go(model):
    outer = nn.Sequential(torch.compile(model, backend="eager"))
    assert extract_model_from_parallel(outer, recursive=True) is outer
    assert extract_model_from_parallel(outer, recursive=True, keep_torch_compile=False)[0] is model
