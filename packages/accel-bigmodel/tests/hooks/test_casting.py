from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_bigmodel import attach_layerwise_casting_hooks
from accel_state.errors import ConfigError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 4)
        self.seen: list[torch.dtype] = []
        self.inner.register_forward_hook(lambda module, *_: self.seen.append(module.weight.dtype))

    def forward(self, x):
        return self.head(self.norm(self.inner(x)))


def test_weights_are_small_between_forwards():
    model = Net()
    attach_layerwise_casting_hooks(model, torch.float8_e4m3fn, torch.float32, skip_modules_pattern="head")
    model(torch.zeros(1, 4))
    assert model.inner.weight.dtype == torch.float8_e4m3fn
    assert model.norm.weight.dtype == model.head.weight.dtype == torch.float32


def test_classes_can_be_left_unchanged_and_the_rest_is_cast_for_its_forward():
    model = Net()
    seen = []

    class Watching(nn.Linear):
        def forward(self, x):
            seen.append(self.weight.dtype)
            return super().forward(x)

    model.inner = Watching(4, 4)
    attach_layerwise_casting_hooks(model, torch.bfloat16, torch.float32, skip_modules_classes=(nn.LayerNorm,))
    model(torch.zeros(1, 4))
    assert seen == [torch.float32]
    assert model.inner.weight.dtype == model.head.weight.dtype == torch.bfloat16
    assert model.norm.weight.dtype == torch.float32


def test_without_exceptions_layers_are_cast_that_compute_by_matrices():
    model = Net()
    attach_layerwise_casting_hooks(model, torch.bfloat16, torch.float32)
    assert model.inner.weight.dtype == model.head.weight.dtype == torch.bfloat16
    assert model.norm.weight.dtype == torch.float32
    assert model(torch.zeros(1, 4)).dtype == torch.float32


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.inner = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.again.weight = self.inner.weight
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.normed(self.again(self.inner(self.embed(tokens)))))


def test_a_weight_that_a_module_without_a_hook_uses_is_refused():
    model = Tied()
    wanted = r"`embed\.weight` is tied to `head`, and .* in torch\.bfloat16.* Add `head` to `skip_mod"
    with pytest.raises(ConfigError, match=wanted):
        attach_layerwise_casting_hooks(model, torch.bfloat16, torch.float32, skip_modules_pattern="norm")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_tied_weights_whose_modules_all_have_hooks_are_cast_for_each_of_them():
    model, tokens = Tied(), torch.arange(6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())  # so that storing them loses nothing
        wanted = model(tokens)
        attach_layerwise_casting_hooks(model, torch.bfloat16, torch.float32, skip_modules_pattern="head")
        assert torch.equal(model(tokens), wanted)
    assert model.inner.weight is model.again.weight
    assert model.inner.weight.dtype == torch.bfloat16
    assert model.embed.weight.dtype == torch.float32
