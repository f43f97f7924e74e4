from __future__ import annotations

import torch
from torch import nn

from accel_bigmodel import get_non_persistent_buffers, named_module_tensors


def model() -> nn.Module:
    inner = nn.Module()
    inner.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    inner.register_buffer("kept", torch.zeros(1))
    inner.register_buffer("lost", torch.zeros(1), persistent=False)
    outer = nn.Module()
    outer.register_parameter("scale", nn.Parameter(torch.zeros(1)))
    outer.register_buffer("cache", torch.zeros(1), persistent=False)
    outer.inner = inner
    return outer


def names(**options: bool) -> list[str]:
    return [name for name, _ in named_module_tensors(model(), **options)]


def test_named_module_tensors_yields_what_its_arguments_request():
    assert names() == ["scale", "cache"]
    assert names(include_buffers=False, recurse=True) == ["scale", "inner.weight"]
    assert names(recurse=True) == ["scale", "inner.weight", "cache", "inner.kept", "inner.lost"]
    assert names(recurse=True, remove_non_persistent=True) == ["scale", "inner.weight", "inner.kept"]
    assert names(remove_non_persistent=True) == ["scale"]


def test_the_tensors_are_those_of_the_module():
    linear = nn.Linear(2, 2)
    assert all(getattr(linear, name) is tensor for name, tensor in named_module_tensors(linear))


def test_non_persistent_buffers_are_found_by_either_name():
    assert get_non_persistent_buffers(model()) == {"cache"}
    assert get_non_persistent_buffers(model(), recurse=True) == {"cache", "lost"}
    assert get_non_persistent_buffers(model(), recurse=True, fqns=True) == {"cache", "inner.lost"}
