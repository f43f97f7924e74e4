from __future__ import annotations

import torch
from torch import nn

from accel_bigmodel import attach_layerwise_casting_hooks


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


def test_classes_can_be_left_alone_and_the_rest_is_cast_for_its_forward():
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


def test_without_exceptions_the_module_is_cast_as_a_whole():
    model = Net()
    attach_layerwise_casting_hooks(model, torch.bfloat16, torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model(torch.zeros(1, 4)).dtype == torch.float32
