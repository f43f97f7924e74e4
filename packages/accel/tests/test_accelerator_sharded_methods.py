"""Sharded models that are called by a submodule or another method before, or instead of, their forward."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import register_fsdp_forward_method

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel_state.runtime import reset_runtime
from tools.harness.models import make_batches

CONTEXTS = {"grad": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(7, 7) for _ in range(2))
        self.norm = nn.LayerNorm(7)

    def forward(self, rows):
        for block in self.blocks:
            rows = rows + torch.tanh(block(rows))
        return self.norm(rows)


class Net(nn.Module):
    """Its scale belongs to no unit but the root."""

    parallel_plan = {"units": ["model.blocks.*"], "tail": ["model.norm", "head"]}

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.model = Base()
        self.head = nn.Linear(7, 5)
        self.scale = nn.Parameter(torch.rand(5))

    def forward(self, rows):
        return self.encode(rows) * self.scale

    def encode(self, rows):
        return self.head(self.model(rows))

    def scaled(self, rows):
        return self(rows) * self.scale


def sharded(precision="no"):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    return Accelerator(cpu=True, mixed_precision=precision, fsdp_plugin=plugin)


def first_calls():
    return {
        "model": lambda model, rows: model.model(rows),
        "block": lambda model, rows: model.model.blocks[1](rows),
        "norm": lambda model, rows: model.model.norm(rows),
        "encode": lambda model, rows: model.encode(rows),
    }


def call_first(context):
    """Return, for each first call, its output, and the gradients of a step that trains by ``encode`` and the model."""
    found = {}
    for name, call in first_calls().items():
        reset_runtime(keep_process_group=True)
        accelerator = sharded()
        rows = make_batches(2)
        model = accelerator.prepare(Net())
        with CONTEXTS[context]():
            output = call(model, rows[0])
        for run in (model.encode, model):
            accelerator.backward(run(rows[accelerator.process_index]).square().mean())
        gradients = [parameter.grad.full_tensor() for parameter in model.parameters()]
        found[name] = output.detach(), gradients
    return found


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_any_part_of_a_sharded_model_may_be_called_first(world, num_ranks, context):
    expected, rows = Net(), make_batches(2)
    for micro in rows[:num_ranks]:
        for run in (expected.encode, expected):
            (run(micro).square().mean() / num_ranks).backward()
    for found in world(num_ranks).run(call_first, context):
        for name, call in first_calls().items():
            output, gradients = found[name]
            torch.testing.assert_close(output, call(expected, rows[0]).detach())
            for gradient, parameter in zip(gradients, expected.parameters(), strict=True):
                torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-6)


def call_registered(precision):
    accelerator = sharded(precision)
    rows = make_batches(2)
    model = accelerator.prepare(Net())
    register_fsdp_forward_method(model, "scaled")
    with accelerator.autocast():
        output = model.scaled(rows[accelerator.process_index])
    accelerator.backward(output.square().mean())
    return [parameter.grad.full_tensor() for parameter in model.parameters()]


@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-6), ("bf16", 0.02)])
def test_a_method_that_is_registered_with_torch_uses_parameters_of_the_root(world, precision, tolerance):
    expected, rows = Net(), make_batches(2)
    for micro in rows:
        (expected.scaled(micro).square().mean() / 2).backward()
    for gradients in world(2).run(call_registered, precision):
        for gradient, parameter in zip(gradients, expected.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=tolerance)


class TwoTowers(nn.Module):
    """A unit for images, which a batch may not have, next to one for text, of which ranks use different branches."""

    parallel_plan = {"units": ["image", "text"]}

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.image = nn.Linear(7, 7)
        self.text = Branches()
        self.head = nn.Linear(7, 1)

    def forward(self, rows, branch, has_image):
        rows = self.text(rows, branch)
        return self.head(self.image(rows) if has_image else rows)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(3))

    def forward(self, rows, branch):
        return torch.tanh(self.layers[branch](rows))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5)


# Whether each micro-batch has images, by step: the first of two is not reduced.
STEPS = [[False, False], [True, False], [False, False], [False, True], [False, False]]


def train_by_batches_without_images(without_sync):
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2),
    )
    rows, rank = make_batches(4), accelerator.process_index
    model = TwoTowers()
    model, optimizer = accelerator.prepare(model, adamw(model.parameters()))
    grads = []
    for step in STEPS:
        for index, has_image in enumerate(step):
            is_last = index == len(step) - 1
            with (
                accelerator.accumulate(model),
                nullcontext() if is_last or not without_sync else accelerator.no_sync(model),
            ):
                accelerator.backward(model(rows[rank], rank % 2, has_image).square().mean())
                grads.append(model.image.weight.grad is not None)
                optimizer.step()
                optimizer.zero_grad()
    return grads, accelerator.get_state_dict(model)


@pytest.mark.parametrize("without_sync", [False, True])
def test_a_unit_that_no_rank_ran_is_not_stepped(world, without_sync):
    """The third branch of the text's unit, which ran, is used by no rank: its gradient is zero."""
    expected, rows = TwoTowers(), make_batches(2)
    optimizer = adamw(expected.parameters())
    for step in STEPS:
        for parameter in expected.text.layers[2].parameters():
            parameter.grad = torch.zeros_like(parameter)
        for has_image in step:
            for rank in range(2):
                (expected(rows[rank], rank, has_image).square().mean() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    (grads, state), _ = world(2).run(train_by_batches_without_images, without_sync)
    assert grads[-2:] == grads[4:6] == grads[:2] == [False, False]
    assert [grads[3], grads[7]] == [True, True]
    for name, value in expected.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)
