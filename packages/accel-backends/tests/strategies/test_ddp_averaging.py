"""What DDP left unaveraged is known without asking other ranks."""

from __future__ import annotations

import copy
import warnings
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from accel_backends import UnaveragedGradientsWarning
from accel_backends.strategies.ddp_averaging import AveragingCheck, TrackedDDP

pytestmark = pytest.mark.usefixtures("fresh_state")


def differences():
    """Return, for some ways to compute gradients, whether ranks have others, and what the track says."""
    torch.manual_seed(0)
    model = TrackedDDP(nn.Linear(4, 1))
    rows = torch.full((2, 4), float(dist.get_rank() + 1))

    def called():
        model(rows).square().mean().backward()

    def unwrapped():
        model.module(rows).square().mean().backward()

    def twice():
        loss = model(rows).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()

    def two_forwards_first():
        losses = [model(rows).square().mean() for _ in range(2)]
        for loss in losses:
            loss.backward()

    def unwrapped_before():
        unwrapped()
        called()

    def unwrapped_after_a_dropped_forward():
        model(rows)
        unwrapped()

    found = {}
    for way in (
        called,
        unwrapped,
        twice,
        two_forwards_first,
        unwrapped_before,
        unwrapped_after_a_dropped_forward,
    ):
        model.zero_grad()
        way()
        both = [torch.zeros_like(model.module.weight) for _ in range(2)]
        dist.all_gather(both, model.module.weight.grad)
        found[way.__name__] = not torch.equal(*both), model.track.is_missed
    return found


def test_the_track_knows_when_torch_averages(world):
    for found in world(2).run(differences):
        assert {way: differs for way, (differs, _) in found.items()} == {
            "called": False,
            "unwrapped": True,
            "twice": True,
            "two_forwards_first": True,
            "unwrapped_before": False,
            "unwrapped_after_a_dropped_forward": False,
        }
        assert all(differs == is_missed for differs, is_missed in found.values())


class Named(nn.Module):
    """Has a separate method, and a layer that no loss depends on."""

    def __init__(self):
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, rows):
        return self.layer(rows)

    def generate(self):
        return "text"


def mistakes():
    model, found = TrackedDDP(Named()), []
    for name in ("generate", "nothing"):
        with pytest.raises(AttributeError) as error:
            getattr(model, name)
        found.append(str(error.value))
    model(torch.ones(1, 4)).mean().backward()
    with pytest.raises(RuntimeError, match="find_unused_parameters") as unfinished:
        model(torch.ones(1, 4))
    return [*found, *unfinished.value.__notes__, copy.copy(model).module.generate()]


def test_methods_of_the_model_and_unused_parameters_name_what_to_do(world):
    for of_model, unknown, unused, same in world(2).run(mistakes):
        assert of_model.startswith("`generate` belongs to the model, a `Named`")
        assert of_model.endswith("Use `accelerator.unwrap_model(model).generate`.")
        assert unknown == "'TrackedDDP' object has no attribute 'nothing'"
        assert (
            "`Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])`"
            in unused
        )
        assert same == "text"


def checked():
    """Check every second of some steps without a forward, and release the model."""
    model = TrackedDDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check = AveragingCheck([model], update=list)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            model.module(torch.ones(2, 4)).mean().backward()
            check(optimizer)
    return [one.category for one in caught if issubclass(one.category, UserWarning)]


def test_an_optimizer_is_warned_of_once(world):
    assert world(2).run(checked) == [[UnaveragedGradientsWarning]] * 2


def let_go():
    model = TrackedDDP(nn.Linear(4, 1))
    check = AveragingCheck(weakref.WeakSet([model]), update=list)
    model(torch.ones(2, 4)).mean().backward()
    check(torch.optim.SGD(model.parameters(), lr=0.1))
    gone = weakref.ref(model)
    del model
    return gone() is None


def test_neither_track_nor_check_keeps_a_model_alive(world):
    assert world(2).run(let_go) == [True, True]
