"""Parameters that are frozen, unfrozen, added or replaced after `prepare` train under DDP as in one process."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from accel import Accelerator, DistributedDataParallelKwargs
from accel_backends.strategies import ddp_parameters
from accel_state.errors import StateError

pytestmark = pytest.mark.usefixtures("fresh_state")


class Net(nn.Module):
    """A backbone of two layers and a head, of which the first layer is frozen at first."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)
        self.first.requires_grad_(False)

    def forward(self, rows):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(rows)))))


class Adapted(nn.Module):
    """A layer with a low-rank addition."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(4, 2, bias=False)
        self.up = nn.Linear(2, 4, bias=False)

    def forward(self, rows):
        return self.layer(rows) + self.up(self.down(rows))


def unfreeze(net, optimizer):
    net.first.requires_grad_(True)


def unfreeze_one_tensor(net, optimizer):
    net.first.bias.requires_grad = True


def freeze(net, optimizer):
    net.second.requires_grad_(False)


def swap(net, optimizer):
    net.second.requires_grad_(False)
    net.head.requires_grad_(False)
    net.first.requires_grad_(True)


def replace_head(net, optimizer):
    torch.manual_seed(5)
    net.head = nn.Linear(4, 1)
    optimizer.add_param_group({"params": list(net.head.parameters())})


def replace_parameter(net, optimizer):
    net.head.weight = nn.Parameter(torch.full((1, 4), 0.5))
    optimizer.add_param_group({"params": [net.head.weight]})


def add_adapter(net, optimizer):
    torch.manual_seed(5)
    net.second = Adapted(net.second)
    optimizer.add_param_group({"params": [*net.second.down.parameters(), *net.second.up.parameters()]})


def remove_layer(net, optimizer):
    net.second = nn.Identity()


def back_and_forth(net, optimizer):
    net.second.requires_grad_(not net.second.weight.requires_grad)


CHANGES = {
    change.__name__: change
    for change in (
        unfreeze,
        unfreeze_one_tensor,
        freeze,
        swap,
        replace_head,
        replace_parameter,
        add_adapter,
        remove_layer,
        back_and_forth,
    )
}


def trained(
    change, *, world_size=6, num_micro_batches=1, at=(1,), options=None, compiled=False, backward=None
):
    """Train on this rank's part of each of five batches, and return the weights."""
    handlers = [DistributedDataParallelKwargs(**(options or {}))]
    settings = {"dynamo_backend": "eager"} if compiled else {}
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=num_micro_batches, kwargs_handlers=handlers, **settings
    )
    backward = backward or accelerator.backward
    torch.manual_seed(0)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.05))
    generator = torch.Generator().manual_seed(1)
    for number in range(5 * num_micro_batches):
        if number in at:
            CHANGES[change](net, optimizer)
        rows = torch.randn(12, 3, generator=generator).chunk(accelerator.num_processes)[
            accelerator.process_index
        ]
        with accelerator.accumulate(model):
            backward(model(rows).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


def assert_as_one_process(worlds, change, num_ranks, **options):
    expected = trained(change, **{name: value for name, value in options.items() if name != "options"})
    for ours in worlds(num_ranks).run(trained, change, **options):
        assert ours.keys() == expected.keys()
        for name, values in ours.items():
            # Sums over rows in another order, seen through the quotients of AdamW.
            torch.testing.assert_close(values, expected[name], rtol=0, atol=2e-5)


@pytest.mark.parametrize("change", CHANGES)
def test_ranks_train_on_as_one_process(world, change):
    assert_as_one_process(world, change, 2, at=(1, 3) if change == "back_and_forth" else (1,))


@pytest.mark.parametrize("change", ["unfreeze", "freeze", "replace_head"])
@pytest.mark.parametrize("at", [(2,), (3,)], ids=["first of a window", "within a window"])
def test_gradients_that_were_accumulated_before_are_not_lost(world, change, at):
    assert_as_one_process(world, change, 2, at=at, num_micro_batches=2)


@pytest.mark.parametrize("at", [(2, 3), (3, 4)])
@pytest.mark.parametrize("change", ["back_and_forth"])
def test_parameters_may_change_twice_in_a_window(world, change, at):
    assert_as_one_process(world, change, 2, at=at, num_micro_batches=2)


@pytest.mark.parametrize("change", ["unfreeze", "freeze", "add_adapter"])
@pytest.mark.parametrize(
    "options",
    [
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
        {"comm_hook": "power_sgd", "comm_state_option": {"start_powerSGD_iter": 50}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_the_new_reducer_has_the_options_of_the_old_one(world, change, options):
    assert_as_one_process(world, change, 2, options=options)


@pytest.mark.parametrize("change", ["unfreeze", "freeze"])
def test_compiled_models_follow(world, change):
    assert_as_one_process(world, change, 2, compiled=True)


def by_hand(change):
    return trained(change, backward=torch.Tensor.backward)


@pytest.mark.parametrize("change", ["unfreeze", "freeze", "replace_head"])
def test_a_loss_that_computes_its_own_gradients_is_followed_too(world, change):
    expected = by_hand(change)
    for ours in world(2).run(by_hand, change):
        for name, values in ours.items():
            torch.testing.assert_close(values, expected[name], rtol=0, atol=2e-5)


@pytest.mark.parametrize("change", ["unfreeze", "freeze"])
def test_three_ranks_follow(world, change):
    assert_as_one_process(world, change, 3)


def differing(change, changed_ranks, deadline_s):
    """Change the parameters of some ranks only, and return what each rank raises."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ddp_parameters, "DEADLINE_S", deadline_s)
        return raised_by(change, changed_ranks)


def raised_by(change, changed_ranks):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    warnings.simplefilter("ignore")
    for number in range(4):
        if number == 1 and accelerator.process_index in changed_ranks:
            CHANGES[change](net, optimizer)
        try:
            accelerator.backward(model(torch.ones(2, 3)).mean())
        except StateError as error:
            return number, str(error)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.gather(torch.ones(1))
    return None


@pytest.mark.parametrize(
    ("change", "changed", "named"),
    [
        ("unfreeze", (0,), "first.weight"),
        ("freeze", (1,), "second.weight"),
        ("replace_head", (0, 1), "head.bias"),
    ],
)
def test_ranks_that_train_other_parameters_raise_on_each(world, change, changed, named):
    for found in world(3).run(differing, change, changed, 0.5):
        number, message = found
        assert number == 2
        assert "train different parameters of `Net`" in message
        assert f"`{named}`" in message
        assert f"Process {', '.join(map(str, changed))}" in message


def built_elsewhere():
    """Build modules next to the model between the steps; return whether it is looked at again after each."""
    accelerator = Accelerator(cpu=True)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    found = []
    for _ in range(3):
        if accelerator.is_main_process:
            nn.Linear(1, 1)
        accelerator.backward(model(torch.ones(2, 3)).mean())
        found.append(model.may_have_changed())
        optimizer.step()
        optimizer.zero_grad()
    return found, model.num_changes


def test_modules_that_are_built_elsewhere_change_nothing(world):
    assert world(2).run(built_elsewhere) == [([False] * 3, 0)] * 2
