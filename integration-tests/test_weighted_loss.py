import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from accel import Accelerator
from accel_backends import Strategy
from accel_backends.stepping.weighted_loss import WeightedLoss, check_count
from accel_state.errors import ConfigError, StateError

pytestmark = pytest.mark.usefixtures("fresh_state")

SIZES = [5, 1, 3, 7, 2, 4, 6, 1]
"""Items of each micro-batch: two windows of four on one process, or of two on two."""


def micro_batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, 3, generator=generator, dtype=torch.float64) for size in SIZES]


def line():
    model = nn.Linear(3, 1, dtype=torch.float64)
    nn.init.constant_(model.weight, 0.3)
    nn.init.constant_(model.bias, -0.2)
    return model


def mean_loss(model, inputs):
    return (model(inputs) - inputs.prod(dim=1, keepdim=True)).square().mean()


def whole_batches():
    """Weights after a step on each half of the items, as two big batches."""
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = micro_batches()
    for half in (batches[:4], batches[4:]):
        mean_loss(model, torch.cat(half)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights_of(model)


def weights_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def weighted(num_steps, *, as_tensor=False):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_steps)
    model = line()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    mine = micro_batches()[accelerator.process_index :: accelerator.num_processes]
    for inputs in mine:
        with accelerator.accumulate(model):
            count = torch.tensor(len(inputs)) if as_tensor else len(inputs)
            accelerator.backward(mean_loss(model, inputs), num_items=count)
            optimizer.step()
            optimizer.zero_grad()
    return weights_of(accelerator.unwrap_model(model))


@pytest.mark.parametrize("as_tensor", [False, True])
def test_ragged_micro_batches_equal_the_full_batch(as_tensor):
    assert weighted(4, as_tensor=as_tensor) == pytest.approx(whole_batches(), rel=1e-12)


@pytest.mark.parametrize(("num_processes", "num_steps"), [(2, 2), (4, 1)])
def test_ragged_ranks_equal_the_full_batch(world, num_processes, num_steps):
    for weights in world(num_processes).run(weighted, num_steps):
        assert weights == pytest.approx(whole_batches(), rel=1e-12)


def test_without_the_count_a_short_micro_batch_counts_as_much_as_a_long_one():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    for inputs in (torch.ones(1, 1), torch.full((9, 1), 3.0)):
        with accelerator.accumulate(model):
            accelerator.backward(model(inputs).mean())
    assert model.weight.grad.item() == pytest.approx(2.0)


def with_an_empty_rank():
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    if accelerator.is_main_process:
        accelerator.backward(model(torch.full((4, 1), 3.0)).mean(), num_items=4)
    else:
        accelerator.backward(model(torch.ones(1, 1)).sum() * 0, num_items=0)
    return accelerator.unwrap_model(model).weight.grad.item()


def test_a_rank_without_items_does_not_dilute_the_gradient(world):
    assert world(2).run(with_an_empty_rank) == [3.0, 3.0]


@pytest.mark.parametrize("order", [(3, None), (None, 3)])
def test_counting_only_some_micro_batches_is_an_error(order):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(nn.Linear(1, 1))

    def step(num_items):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum(), num_items=num_items)

    step(order[0])
    with pytest.raises(StateError, match="in every micro-batch, or in none"):
        step(order[1])


def two_losses(num_steps, *, at):
    """Run blocks with one loss each, and two in that with the number `at`."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_steps)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    for step in range(num_steps):
        with accelerator.accumulate(model):
            for _ in range(2 if step == at else 1):
                accelerator.backward(model(torch.ones(2, 1)).mean(), num_items=2)
    return model.weight.grad.item()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_second_loss_in_a_block_is_refused_where_its_items_would_count_for_the_first(at):
    with pytest.raises(StateError, match="has a second `backward` with `num_items`"):
        two_losses(3, at=at)


def test_without_accumulation_each_loss_is_a_separate_mean():
    assert two_losses(1, at=0) == 2.0


def test_no_item_at_all_is_an_error():
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(1, 1))
    with pytest.raises(StateError, match="nothing to average"):
        accelerator.backward(model(torch.ones(1, 1)).sum(), num_items=0)


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf")])
def test_what_is_no_count_is_refused(count):
    with pytest.raises(ConfigError, match="finite number from 0 up, got"):
        check_count(count)


class Reads(TorchDispatchMode):
    """Counts the values that the host waits for."""

    num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def on_the_device(counts):
    """Return the gradient of a window whose losses are 0, 1, …, and how many values were read."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    losses = WeightedLoss(num_ranks=1, keeps_tensors=True)
    scale = partial(Strategy.scale_gradients, None, [nn.ParameterList([weight])])
    with Reads() as reads:
        for index, count in enumerate(counts):
            loss, is_last = (weight * index).sum(), index == len(counts) - 1
            losses.backward(loss, count, is_last=is_last, run=torch.Tensor.backward, scale=scale)
    return weight.grad.item(), reads.num


@pytest.mark.parametrize("counts", [[1, 3, 4], [2**24 + 1, 1, 2**53 - 2**25], [0, 0, 7]])
def test_counts_on_the_device_are_not_read_and_exact(counts):
    gradient, num_reads = on_the_device([torch.tensor(count) for count in counts])
    assert gradient == pytest.approx((counts[1] + 2 * counts[2]) / sum(counts), rel=1e-15)
    assert num_reads == 0


@pytest.mark.parametrize("counts", [[0, 0], [-1, 2], [float("nan"), 1], [1, float("inf")]])
def test_gradients_are_nan_if_counts_on_the_device_are_none(counts):
    assert math.isnan(on_the_device([torch.tensor(count) for count in counts])[0])


def test_a_half_precision_gradient_is_scaled_by_an_exact_number():
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    weight.grad = torch.full_like(weight, 3.0)
    Strategy.scale_gradients(None, [nn.ParameterList([weight])], torch.tensor(1 / 3))
    assert weight.grad.item() == 1.0
