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


def mean_of_mixed_weights():
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    model = nn.ParameterList(
        [
            torch.full((4,), 60000.0 - 64 * rank, dtype=torch.float16),
            torch.full((300_000,), 256.0 + 2 * rank, dtype=torch.bfloat16),
            (torch.arange(6.0).reshape(2, 3) * (rank + 1)).t(),
            torch.zeros(3),
            nn.Parameter(torch.tensor(rank), requires_grad=False),
        ]
    )
    local_sgd = LocalSGD(accelerator, model, 1)
    local_sgd.average()
    model[3].data = torch.full((3,), 10.0 * rank)  # replaced between two averagings
    local_sgd.average()
    return [weight.flatten()[-2:].tolist() for weight in model]


def test_weights_of_every_kind_are_averaged(world):
    half, brain, turned = [59968.0] * 2, [256.0] * 2, [2 * 1.5, 5 * 1.5]  # 257 is rounded to 256
    for rank, weights in enumerate(world(2).run(mean_of_mixed_weights)):
        assert weights == [half, brain, turned, [5.0] * 2, [rank]]


def test_switched_off_every_step_is_synchronised(world):
    assert world(2).run(drift, 2, 2, enabled=False) == [[1.5, 3.0, 3.0]] * 2


def test_with_one_process_nothing_changes():
    assert drift(2, 3) == [1.0, 2.0, 3.0, 3.0]


def test_fewer_than_one_step_is_refused():
    with pytest.raises(ConfigError, match="`local_sgd_steps` must be at least 1, got 0"):
        LocalSGD(Accelerator(cpu=True), nn.Linear(1, 1), 0)
