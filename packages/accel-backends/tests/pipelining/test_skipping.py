"""A stage does not run the modules of earlier stages again, but where what they return may matter to it."""

import pytest
import torch
from torch import nn

from accel_backends.pipelining.stages import StagedModel


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.num_calls = 0

    def forward(self, hidden):
        self.num_calls += 1
        return torch.tanh(self.layer(hidden))


class PassesOn(Block):
    """Returns what it was given, next to what it computes."""

    def forward(self, hidden):
        return super().forward(hidden), hidden


class GivesWeight(Block):
    """Returns a parameter, which the last stage uses."""

    def forward(self, hidden):
        return super().forward(hidden), self.layer.weight


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first = Block()
        self.blocks = nn.ModuleList([kind(), Block(), Block()])

    def forward(self, rows):
        hidden, other = self.first(rows), None
        for block in self.blocks:
            result = block(hidden)
            hidden, other = result if isinstance(result, tuple) else (result, other)
        return hidden @ other if self.kind is GivesWeight else hidden


@pytest.mark.parametrize(("kind", "num_calls"), [(Block, 0), (PassesOn, 1), (GivesWeight, 1)])
def test_a_stage_returns_the_same_with_and_without_calls_of_earlier_stages(kind, num_calls):
    model, rows = Net(kind), torch.randn(3, 4)
    expected = model(rows)
    hidden = model.first(rows)
    for block in model.blocks[:2]:
        result = block(hidden)
        hidden = result[0] if isinstance(result, tuple) else result
    staged = StagedModel(model, ["blocks.2"], device=torch.device("cpu"))
    trace = staged.trace(lambda: model(rows))
    staged.decide(1, trace)
    for block in (model.first, *model.blocks):
        block.num_calls = 0
    for _ in range(2):
        with staged.without_other_ranks():
            output = staged.run(1, lambda: model(rows), [hidden], trace)
        assert torch.equal(output.result, expected)
    assert [block.num_calls for block in model.blocks] == [2 * num_calls, 0, 2]
    assert model.first.num_calls == 0
    assert torch.equal(model(rows), expected)


class CallsNeighbour(Block):
    """Calls the block next to it, which is called less often where this one is skipped."""

    def forward(self, hidden):
        return super().forward(self.neighbour[0](hidden))


def test_a_block_that_another_one_calls_is_called_again():
    model, rows = Net(CallsNeighbour), torch.randn(3, 4)
    model.blocks[0].neighbour = [model.blocks[1]]  # in a list, so that it is no child
    expected = model(rows)
    staged = StagedModel(model, ["blocks.2"], device=torch.device("cpu"))
    trace = staged.trace(lambda: model(rows))
    staged.decide(1, trace)
    assert model.blocks[0] in trace.calls
    assert model.blocks[1] not in trace.calls
    hidden = model.blocks[1](model.blocks[0](model.first(rows)))
    with staged.without_other_ranks():
        assert torch.equal(staged.run(1, lambda: model(rows), [hidden], trace).result, expected)
