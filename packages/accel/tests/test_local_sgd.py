import pytest
import torch
from torch import nn

from accel import Accelerator, LocalSGD
from accel_state.errors import ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


def drift(local_sgd_steps, num_steps, *, enabled=True):
    """Weights after each step of a run in which every rank pulls its own way."""
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    plain = accelerator.unwrap_model(model)
    weights = []
    with LocalSGD(accelerator, model, local_sgd_steps, enabled=enabled) as local_sgd:
        for _ in range(num_steps):
            pull = torch.full((1, 1), -float(accelerator.process_index + 1))
            accelerator.backward(model(pull).sum())
            optimizer.step()
            optimizer.zero_grad()
            local_sgd.step()
            weights.append(plain.weight.item())
    return [*weights, plain.weight.item()]


def test_ranks_go_their_own_ways_and_meet_at_the_mean(world):
    assert world(2).run(drift, 2, 3) == [[1.0, 3.0, 4.0, 4.5], [2.0, 3.0, 5.0, 4.5]]


def test_switched_off_every_step_is_synchronised(world):
    assert world(2).run(drift, 2, 2, enabled=False) == [[1.5, 3.0, 3.0]] * 2


def test_with_one_process_nothing_changes():
    assert drift(2, 3) == [1.0, 2.0, 3.0, 3.0]


def test_fewer_than_one_step_is_refused():
    with pytest.raises(ConfigError, match="`local_sgd_steps` must be at least 1, got 0"):
        LocalSGD(Accelerator(cpu=True), nn.Linear(1, 1), 0)
