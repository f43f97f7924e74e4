"""Ranks draw other numbers in a forward, and are in the same state again after it."""

import copy
import pickle

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from accel_backends.own_random_numbers import draw_own_numbers, own_random_numbers

CPU = torch.device("cpu")


def drawn(number, *, count=4, seed=3):
    torch.manual_seed(seed)
    with own_random_numbers(number, CPU):
        inside = torch.rand(count)
    return inside, torch.rand(4)


def test_ranks_differ_in_the_block_and_are_alike_after_it_however_much_each_drew():
    (first, after), (second, other) = drawn(0), drawn(1, count=7)
    assert not torch.isin(first, second).any()
    assert after.equal(other)


def test_the_same_state_gives_the_same_numbers_again_and_the_next_block_others():
    assert drawn(1)[0].equal(drawn(1)[0])
    with own_random_numbers(1, CPU):
        assert not torch.rand(4).equal(drawn(1)[0])


def test_the_state_is_back_after_an_error():
    torch.manual_seed(3)
    try:
        with own_random_numbers(0, CPU):
            raise KeyError
    except KeyError:
        assert torch.rand(4).equal(drawn(0)[1])


def test_a_forward_that_runs_twice_drops_out_alike():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    draw_own_numbers(model, number=1, device=CPU)
    found = []
    for forward in (model, lambda rows: checkpoint(model, rows, use_reentrant=False)):
        torch.manual_seed(3)
        model.zero_grad()
        forward(torch.ones(4, 8)).square().sum().backward()
        found.append(model[0].weight.grad.clone())
    assert found[0].equal(found[1])


def test_a_model_that_draws_its_own_can_be_compiled_copied_and_pickled():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    draw_own_numbers(model, number=1, device=CPU)
    outputs = []
    compiled = torch.compile(model, backend="eager")
    for one in (model, compiled, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.manual_seed(3)
        outputs.append(one(torch.ones(4, 8)))
    assert all(one.equal(outputs[0]) for one in outputs)
