"""A backward pass in two parts gives the gradients of a full one."""

import pytest
import torch
from torch import nn

from accel_backends.pipeline.split_backward import SplitBackward


class Shared(nn.Module):
    """A matrix that is used twice, one after the other."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4))

    def forward(self, rows):
        return torch.tanh(torch.tanh(rows @ self.matrix) @ self.matrix)


class Packed(nn.Module):
    """Two matrices that are read from one flat tensor, as after an exchange between ranks."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))

    def forward(self, rows):
        flat = torch.cat([self.one.flatten(), self.other.flatten()]) * 1
        one, other = (part.view(4, 4) for part in flat.split(16))
        return torch.tanh(torch.tanh(rows @ one) @ other)


class Halves(nn.Module):
    """A layer whose output is taken apart, so that gradients arrive at a node by two ways."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, rows):
        one, other = self.layer(rows).chunk(2, -1)
        return one * torch.sigmoid(other)


class Biased(nn.Module):
    """A bias that meets the input twice, with a layer in between, as the position bias of T5."""

    def __init__(self):
        super().__init__()
        self.table, self.query = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))

    def forward(self, rows):
        bias = torch.tanh(self.table.sum(0))
        return torch.softmax((rows * bias) @ self.query + bias, -1)


@pytest.mark.parametrize("kind", [Shared, Packed, Halves, Biased])
def test_both_parts_give_the_gradients_of_a_full_pass(kind):
    torch.manual_seed(0)
    model, rows = kind(), torch.randn(3, 4, requires_grad=True)
    model(rows).square().sum().backward()
    inputs, expected = rows.grad, [one.grad for one in model.parameters()]
    rows.grad = None
    model.zero_grad()
    for _ in range(2):  # the second adds to the first
        split = SplitBackward([model(rows).square().sum()], [None], [rows], list(model.parameters()))
        split.to_inputs()
        split.to_weights()
    torch.testing.assert_close(rows.grad, 2 * inputs)
    torch.testing.assert_close([one.grad for one in model.parameters()], [2 * one for one in expected])


def test_an_output_that_depends_on_no_input_counts_too():
    torch.manual_seed(0)
    model, rows = Biased(), torch.randn(3, 4, requires_grad=True)
    parameters = list(model.parameters())

    def outputs():
        return [model(rows), torch.tanh(model.table.sum(0)) * 2]

    gradients = [torch.randn(3, 4), torch.randn(4)]
    expected = torch.autograd.grad(outputs(), [rows, *parameters], gradients)
    split = SplitBackward(outputs(), gradients, [rows], parameters)
    split.to_inputs()
    split.to_weights()
    torch.testing.assert_close([one.grad for one in (rows, *parameters)], list(expected))
