"""Sharded models that are called by a submodule or another method before, or instead of, their forward."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel_state.errors import ConfigError
from accel_state.runtime import reset_runtime
from tools.harness.models import make_batches

CONTEXTS = {"grad": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


class Base(nn.Module):
    """Its places and stem belong to no unit but the root."""

    def __init__(self):
        super().__init__()
        self.places, self.stem = nn.Parameter(torch.rand(7)), nn.Linear(7, 7)
        self.blocks = nn.ModuleList(nn.Linear(7, 7) for _ in range(2))
        self.norm = nn.LayerNorm(7)

    def forward(self, rows):
        rows = self.stem(rows) + self.places
        for block in self.blocks:
            rows = rows + torch.tanh(block(rows))
        return self.norm(rows)


class Net(nn.Module):
    """Its scale belongs to no unit but the root."""

    parallel_plan = {"units": ["model.blocks.*"], "tail": ["model.norm", "head"]}

    def __init__(self, *, is_tied=False):
        super().__init__()
        torch.manual_seed(3)
        self.model = Base()
        self.head = nn.Linear(7, 7)
        self.scale = nn.Parameter(torch.rand(7))
        if is_tied:
            self.head.weight = self.model.stem.weight

    def forward(self, rows):
        return self.encode(rows) * self.scale

    def encode(self, rows):
        return self.head(self.model(rows))

    def scaled(self, rows):
        return self(rows) * self.scale


def sharded(precision="no", dynamo_backend=None, **plugin):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, **plugin)
    return Accelerator(cpu=True, mixed_precision=precision, dynamo_backend=dynamo_backend, fsdp_plugin=plugin)


def first_calls():
    return {
        "model": lambda model, rows: model.model(rows),
        "stem": lambda model, rows: model.model.stem(rows),
        "block": lambda model, rows: model.model.blocks[1](rows),
        "norm": lambda model, rows: model.model.norm(rows),
        "encode": lambda model, rows: model.encode(rows),
    }


def train_by(call, model, rows):
    """Compute gradients of a first call, of ``encode`` and of the model."""
    for run in (lambda one: call(model, one), model.encode, model):
        yield run(rows).square().mean()


def call_first(context, is_tied, options):
    """Return, for each first call, its output, and the gradients of steps that train by it and others."""
    found = {}
    for name, call in first_calls().items():
        reset_runtime(keep_process_group=True)
        accelerator = sharded(**options)
        rows = make_batches(3)
        model = accelerator.prepare(Net(is_tied=is_tied))
        with CONTEXTS[context]():
            output = call(model, rows[0])
        for loss in train_by(call, model, rows[accelerator.process_index]):
            accelerator.backward(loss)
        gradients = [parameter.grad.full_tensor() for parameter in model.parameters()]
        found[name] = output.detach(), gradients
    return found


@pytest.mark.parametrize(
    ("num_ranks", "context", "is_tied", "options"),
    [
        (1, "grad", False, {}),
        (2, "inference_mode", False, {}),
        (3, "no_grad", True, {"activation_checkpointing": True}),
        (2, "inference_mode", True, {"dynamo_backend": "eager"}),
    ],
)
def test_any_part_of_a_sharded_model_may_be_called_first(world, num_ranks, context, is_tied, options):
    every_rank = world(num_ranks).run(call_first, context, is_tied, options)
    for name, call in first_calls().items():
        expected, rows = Net(is_tied=is_tied), make_batches(3)
        for micro in rows[:num_ranks]:
            for loss in train_by(call, expected, micro):
                (loss / num_ranks).backward()
        for found in every_rank:
            output, gradients = found[name]
            torch.testing.assert_close(output, call(expected, rows[0]).detach())
            for gradient, parameter in zip(gradients, expected.parameters(), strict=True):
                torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-6)


def train_after_a_failed_call():
    accelerator = sharded()
    model, rows = accelerator.prepare(Net()), make_batches(2)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        model.model.stem(rows[0][:, :5])
    root = model._get_fsdp_state()
    with pytest.MonkeyPatch.context() as patch:
        ended, end = [], root._post_forward
        patch.setattr(root, "_post_forward", lambda module, *rest: ended.append(module) or end(module, *rest))
        model.model(rows[accelerator.process_index])
    return [type(module).__name__ for module in ended]


def test_a_call_that_fails_does_not_end_the_next_in_the_middle(world):
    for ended in world(2).run(train_after_a_failed_call):
        assert ended == ["Base"]


def call_by_name(precision):
    accelerator = sharded(precision, forward_methods=["scaled"])
    rows = make_batches(2)
    model = accelerator.prepare(Net())
    with accelerator.autocast():
        output = model.scaled(rows[accelerator.process_index])
    accelerator.backward(output.square().mean())
    return [parameter.grad.full_tensor() for parameter in model.parameters()]


@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-6), ("bf16", 0.02)])
def test_a_method_that_is_named_uses_parameters_of_the_root(world, precision, tolerance):
    expected, rows = Net(), make_batches(2)
    for micro in rows:
        (expected.scaled(micro).square().mean() / 2).backward()
    for gradients in world(2).run(call_by_name, precision):
        for gradient, parameter in zip(gradients, expected.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=tolerance)


def test_a_named_method_that_no_unit_has_is_an_error(world):
    with pytest.raises(
        ConfigError, match="`forward_methods` has `model.encode`, which is no method of the model"
    ):
        world(1).run(prepare_with_methods, ["model.encode"])


def prepare_with_methods(methods):
    sharded(forward_methods=methods).prepare(Net())


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
    """Nor is the third branch of the text's unit, which ran."""
    expected, rows = TwoTowers(), make_batches(2)
    optimizer = adamw(expected.parameters())
    for step in STEPS:
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
