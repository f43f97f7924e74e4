"""Stages that run one after the other compute what the model computes, and no stage takes what it does not have."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from accel_backends.pipeline.stages import StagedModel, refuse_collected
from accel_backends.plans.sources import resolve_plan
from accel_backends.plans.stages import stages_of
from accel_state.errors import ConfigError
from tools.harness.models import MODELS, Block, make_batches, make_model


def staged_copies(make, num_stages):
    """Return a copy of the model for each stage, with the values of that stage."""
    copies = []
    for place in range(num_stages):
        torch.manual_seed(0)
        model = make().eval()
        stages = stages_of(model, resolve_plan(model), num_stages)
        staged = StagedModel(model, stages, device=torch.device("cpu"), place=place, num_ranks=num_stages)
        for found in staged.tensors:
            if not staged.is_held(found):
                staged.drop(found)
        copies.append(staged)
    return copies


def run_in_turn(copies, call):
    """Run the stages forward and back; return the loss and the gradients of all copies together."""
    runs, values, num_outputs = [], (), copies[0].run_state.num_outputs
    for stage, staged in enumerate(copies):
        received = [one if one is None else one.detach().requires_grad_() for one in values]
        staged.run_state.num_outputs = num_outputs
        output = staged.run(stage, lambda model=staged.model: call(model), received)
        values, num_outputs = output.values, staged.run_state.num_outputs
        runs.append((received, output))
    gradients = [None]
    for received, output in reversed(runs):
        roots = [one for one in output.values if one is not None] or [output.result]
        pairs = [pair for pair in zip(roots, gradients, strict=True) if pair[0].requires_grad]
        torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs])
        gradients = [
            torch.zeros_like(one) if one.grad is None else one.grad for one in received if one is not None
        ]
    names = [name for name, _ in copies[0].model.named_parameters()]
    of_copies = [[one.model.get_parameter(name).grad for one in copies] for name in names]
    sums = [sum(one for one in found if one is not None) for found in of_copies]
    return runs[-1][1].result, dict(zip(names, sums, strict=True))


class Around(nn.Module):
    """Uses what a block is given next to the block."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(Block(6, 4) for _ in range(4))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, rows):
        hidden = self.embed((rows.abs() * 100).long() % 9)
        for block in self.blocks:
            hidden = block(hidden) + hidden * self.scale
        return torch.nn.functional.linear(hidden, self.embed.weight)


class Reads(nn.Module):
    """Blocks that read what an encoder has computed, and return two values."""

    parallel_plan: ClassVar = {"stages": {"encoder.*": [], "decoder.*": ["memory", "bias"]}}

    class Reader(Block):
        def forward(self, hidden, bias, memory):
            bias = hidden.mean() if bias is None else bias
            return super().forward(hidden + memory) + bias, bias

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList(Block(7, 5) for _ in range(2))
        self.decoder = nn.ModuleList(self.Reader(7, 5) for _ in range(4))

    def forward(self, rows):
        memory, hidden, bias = rows, rows, None
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            outputs = block(hidden, bias, memory=memory)
            hidden, bias = outputs[0], outputs[1]
        return hidden


@pytest.mark.parametrize(
    ("make", "num_stages"),
    [
        *(
            (MODELS[kind], 2)
            for kind in ("odd", "scaled", "tied", "adapted", "buffered", "mixture", "tokens")
        ),
        (MODELS["tied"], 4),
        (Around, 3),
        (Reads, 3),
        (Reads, 6),
        (lambda: nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 9), nn.Linear(9, 3)), 3),
    ],
)
def test_stages_in_turn_have_the_loss_and_gradients_of_the_model(make, num_stages):
    rows = make_batches(1)[0]
    if make is MODELS["tokens"]:
        rows = (rows.abs() * 100).long() % 19

    def call(model):
        return model(rows).square().mean()

    torch.manual_seed(0)
    model = make().eval()
    expected = call(model)
    expected.backward()
    loss, gradients = run_in_turn(staged_copies(make, num_stages), call)
    assert loss.equal(expected)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-6, atol=1e-7, msg=name)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block(7, 7) for _ in range(2))


class Skips(Bare):
    def forward(self, rows):
        first = self.layers[0](rows)
        return self.layers[1](first.tanh()) + first


class Remembers(Bare):
    def forward(self, rows):
        first = self.layers[0](rows).argmax(-1)
        return self.layers[1](rows) + first[..., None]


class Decides(Bare):
    def forward(self, rows):
        rows = self.layers[0](rows)
        return self.layers[1](rows) if rows.isfinite().all() else rows


class Writes(Bare):
    def forward(self, rows):
        seen = torch.zeros_like(rows)
        seen[:] = self.layers[0](rows)
        return self.layers[1](seen)


class Backwards(Bare):
    def forward(self, rows):
        return self.layers[0](self.layers[1](rows))


class Leaves(Bare):
    def forward(self, rows):
        return self.layers[0](rows)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (Skips, "a value for the result of the model, which another stage computes"),
        (Remembers, "a value for the result of the model"),
        (Decides, "decides by computed values"),
        (Writes, "writes what an earlier stage of the pipeline computes to another tensor"),
        (Backwards, "a value for the result of the model"),
        (Leaves, "a call of `layers.1`, with which the next stage begins"),
    ],
)
def test_a_stage_that_needs_what_it_does_not_have_raises_an_error(kind, match):
    rows = make_batches(1)[0]
    with pytest.raises(ConfigError, match=match):
        run_in_turn(staged_copies(kind, 2), lambda model: model(rows).mean())


def test_the_model_is_as_it_was_between_runs():
    copies = staged_copies(MODELS["odd"], 2)
    modules, state = list(copies[1].model.modules()), list(copies[1].model.state_dict())
    run_in_turn(copies, lambda model: model(make_batches(1)[0]).mean())
    assert list(copies[1].model.modules()) == modules
    assert list(copies[1].model.state_dict()) == state == list(make_model("odd").state_dict())


def test_values_over_all_layers_are_refused_by_name():
    with pytest.raises(ConfigError, match="`output_router_logits` collects values of all layers"):
        refuse_collected(nn.Linear(1, 1), (), {"output_router_logits": True})
    refuse_collected(nn.Linear(1, 1), (), {"output_hidden_states": False})
