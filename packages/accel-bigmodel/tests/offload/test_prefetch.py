from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from accel_bigmodel import cpu_offload
from accel_bigmodel.offload.placeholders import weight_of
from accel_bigmodel.offload.weight import OffloadedWeight

pytestmark = pytest.mark.usefixtures("execution_memory")


class Watched(Mapping):
    """Weights that tell in which thread each is read."""

    def __init__(self, weights):
        self.weights, self.log, self.ready = dict(weights), [], threading.Condition()

    def __getitem__(self, name):
        with self.ready:
            self.log.append((threading.current_thread() is threading.main_thread(), name))
            self.ready.notify_all()
        return self.weights[name]

    def __iter__(self):
        return iter(self.weights)

    def __len__(self):
        return len(self.weights)

    def wait_for(self, name):
        with self.ready:
            assert self.ready.wait_for(lambda: (False, name) in self.log, timeout=20)


def watched_model(num_layers: int) -> tuple[nn.ModuleList, Watched]:
    model = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(num_layers))
    weights = Watched(model.state_dict())
    cpu_offload(model, "cpu", state_dict=weights)
    return model, weights


def offloaded_weights(model: nn.Module) -> list[OffloadedWeight]:
    return [weight_of(parameter) for parameter in model.parameters()]


def run(model, order):
    x = torch.ones(1, 4)
    with torch.no_grad():
        for number in order:
            x = model[number](x)
    return x


# Values that are used where they are stored are not copied ahead.
@pytest.mark.parametrize("execution_memory", ["second memory"], indirect=True)
def test_the_second_forward_finds_the_next_weights_on_their_way(execution_memory):
    model, weights = watched_model(3)
    first = run(model, [0, 1, 2])
    assert all(in_main for in_main, _ in weights.log)
    weights.log.clear()
    x = torch.ones(1, 4)
    with torch.no_grad():
        for number in (0, 1, 2):
            x = model[number](x)
            if number < 2 and number > 0:
                weights.wait_for(f"{number + 1}.weight")
    assert torch.equal(x, first)
    assert (True, "2.weight") not in weights.log  # the background had it


def test_a_varying_order_changes_no_result():
    model, weights = watched_model(4)
    resident = [weights.weights[f"{number}.weight"] for number in range(4)]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [0, 1, 2, 3], [2, 2, 0, 1], [1, 3, 1, 3, 0]):
        x = torch.ones(1, 4)
        for number in order:
            x = x @ resident[number].T
        assert torch.equal(run(model, order), x)


def test_at_most_two_blocks_are_in_memory():
    model, _ = watched_model(5)
    for _ in range(3):
        x = torch.ones(1, 4)
        for layer in model:
            with torch.no_grad():
                x = layer(x)
            weights = offloaded_weights(model)
            assert sum(weight.is_live or weight.is_fetched for weight in weights) <= 2


def test_an_error_in_the_background_is_raised_where_the_weight_is_used():
    model, weights = watched_model(2)
    run(model, [0, 1])
    run(model, [0, 1])
    del weights.weights["1.weight"]
    with pytest.raises(KeyError, match=r"1\.weight"):
        run(model, [0, 1])


def test_prefetching_can_be_turned_off():
    model = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
    weights = Watched(model.state_dict())
    cpu_offload(model, "cpu", state_dict=weights, prefetch=False)
    for _ in range(3):
        run(model, [0, 1])
    assert all(in_main for in_main, _ in weights.log)
