import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from accel_backends.strategies.deepspeed.reached import reached_by
from accel_state.errors import ConfigError


def owners_of(*models):
    return {id(parameter): index for index, model in enumerate(models) for parameter in model.parameters()}


def test_a_loss_reaches_the_models_that_it_was_computed_from():
    models = [nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)) for _ in range(3)]
    rows = torch.ones(1, 2)
    owners = owners_of(*models)
    assert reached_by(models[1](rows).sum(), owners) == {1}
    assert reached_by((models[0](rows) + models[2](models[0](rows))).sum(), owners) == {0, 2}


def test_what_was_computed_without_gradients_is_not_reached():
    teacher, student = nn.Linear(2, 2), nn.Linear(2, 2)
    with torch.no_grad():
        wanted = teacher(torch.ones(1, 2))
    assert reached_by((student(torch.ones(1, 2)) - wanted).sum(), owners_of(teacher, student)) == {1}
    assert reached_by(wanted.sum(), owners_of(teacher, student)) == set()


def closure(model):
    return lambda rows: model(rows)


def blocks(model):
    """As `checkpoint_sequential` makes them."""
    layers = [model]
    return lambda rows: layers[0](rows)


@pytest.mark.parametrize(
    "runs",
    [
        lambda model: model,
        lambda model: model.forward,
        lambda model: functools.partial(model.__call__),
        closure,
        blocks,
    ],
)
def test_parameters_inside_reentrant_checkpointing_are_reached(runs):
    models = [nn.Linear(2, 2) for _ in range(2)]
    rows = torch.ones(1, 2, requires_grad=True)
    loss = checkpoint(runs(models[1]), rows, use_reentrant=True).sum()
    assert reached_by(loss, owners_of(*models)) == {1}


class Holder:
    def __init__(self, model):
        self.model = model

    def run(self, rows):
        return self.model(rows)


def test_reentrant_checkpointing_that_shows_no_module_is_refused():
    models = [nn.Linear(2, 2) for _ in range(2)]
    rows = torch.ones(1, 2, requires_grad=True)
    loss = checkpoint(Holder(models[1]).run, rows, use_reentrant=True).sum()
    with pytest.raises(
        ConfigError, match="`use_reentrant=True` that ran.*Pass `use_reentrant=False`, or the"
    ):
        reached_by(loss, owners_of(*models))
    loss = checkpoint(Holder(models[1]).run, rows, use_reentrant=False).sum()
    assert reached_by(loss, owners_of(*models)) == {1}
