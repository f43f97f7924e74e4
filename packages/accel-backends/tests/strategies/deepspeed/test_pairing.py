import pytest
import torch
from torch import nn

from accel_backends.strategies.deepspeed.dummies import DummyOptim, DummyScheduler
from accel_backends.strategies.deepspeed.pairing import Part, check_combination, pair
from accel_state.errors import ConfigError

OPTIMIZER = {"optimizer": {"type": "AdamW"}}
SCHEDULER = {"scheduler": {"type": "WarmupLR"}}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def schedule(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def test_each_model_gets_the_optimizer_of_its_parameters_and_that_ones_scheduler():
    first, second, third = (nn.Linear(1, 1) for _ in range(3))
    of_first, of_second = sgd(first), DummyOptim([{"params": list(second.parameters())}])
    schedules = [DummyScheduler(of_second), schedule(of_first)]
    parts = pair([first, second, third], [of_second, of_first], schedules)
    assert parts == [
        Part(first, of_first, schedules[1]),
        Part(second, of_second, schedules[0]),
        Part(third),
    ]


def test_a_dummy_scheduler_goes_before_one_of_torch():
    model = nn.Linear(1, 1)
    optimizer = sgd(model)
    dummy = DummyScheduler(optimizer)
    assert pair([model], [optimizer], [schedule(optimizer), dummy])[0].scheduler is dummy


def test_an_optimizer_without_its_model_is_refused():
    with pytest.raises(ConfigError, match=r"`SGD` steps parameters of no model.*prepare both in one call"):
        pair([nn.Linear(1, 1)], [sgd(nn.Linear(1, 1))], [])


def test_an_optimizer_of_two_models_is_refused():
    models = [nn.Linear(1, 1), nn.Linear(1, 1)]
    both = torch.optim.SGD([*models[0].parameters(), *models[1].parameters()], lr=0.1)
    with pytest.raises(ConfigError, match="`SGD` steps parameters of several models"):
        pair(models, [both], [])
    with pytest.raises(ConfigError, match="`SGD` steps parameters of a model and others"):
        pair(models[:1], [both], [])


def test_two_optimizers_of_one_model_are_refused():
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"Two optimizers, `SGD` and `DummyOptim`.*`Linear`.*groups of one"):
        pair([model], [sgd(model), DummyOptim(model.parameters())], [])


def test_two_dummy_schedulers_of_one_optimizer_are_refused():
    model = nn.Linear(1, 1)
    optimizer = sgd(model)
    with pytest.raises(ConfigError, match="2 `DummyScheduler` for one optimizer"):
        pair([model], [optimizer], [DummyScheduler(optimizer), DummyScheduler(optimizer)])


@pytest.mark.parametrize(
    ("config", "has_dummy", "scheduler"),
    [
        ({}, False, None),
        ({}, False, "torch"),
        ({}, False, "callable"),
        (OPTIMIZER, True, None),
        (OPTIMIZER, True, "callable"),
        (SCHEDULER, False, None),
        (SCHEDULER, False, "dummy"),
        ({**OPTIMIZER, **SCHEDULER}, True, "dummy"),
    ],
)
def test_what_is_documented_passes(config, has_dummy, scheduler):
    check_combination(make_part(has_dummy, scheduler), config)


@pytest.mark.parametrize(
    ("config", "has_dummy", "scheduler", "match"),
    [
        ({}, True, None, "`DummyOptim` stands for the optimizer of the DeepSpeed config, which has none"),
        (OPTIMIZER, False, None, r"two optimizers: `AdamW` in the DeepSpeed config, and `SGD`"),
        (OPTIMIZER, True, "torch", r"`ExponentialLR` needs an optimizer.*lr_scheduler_callable"),
        (
            {},
            False,
            "dummy",
            "`DummyScheduler` stands for the scheduler of the DeepSpeed config, which has none",
        ),
        (
            SCHEDULER,
            False,
            "torch",
            "two schedulers: `WarmupLR` in the DeepSpeed config, and `ExponentialLR`",
        ),
        (
            SCHEDULER,
            False,
            "callable",
            "two schedulers: one in the DeepSpeed config, and the `lr_scheduler_callable`",
        ),
    ],
)
def test_what_contradicts_the_config_is_refused(config, has_dummy, scheduler, match):
    with pytest.raises(ConfigError, match=match):
        check_combination(make_part(has_dummy, scheduler), config)


def make_part(has_dummy, scheduler):
    model = nn.Linear(1, 1)
    optimizer = DummyOptim(model.parameters()) if has_dummy else sgd(model)
    made = {
        None: lambda: None,
        "torch": lambda: schedule(sgd(model)),
        "dummy": lambda: DummyScheduler(optimizer),
        "callable": lambda: DummyScheduler(optimizer, lr_scheduler_callable=schedule),
    }[scheduler]()
    return Part(model, optimizer, made)
