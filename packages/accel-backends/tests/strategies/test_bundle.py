import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accel_backends import Bundle
from accel_backends.strategies.bundle import BundleBuilder, InTurn, kind_of
from accel_state.errors import ConfigError


def test_things_are_told_apart_by_what_they_are():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    things = [model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1), DataLoader([1]), "text", None]
    assert [kind_of(thing) for thing in things] == [
        "models",
        "optimizers",
        "schedulers",
        "loaders",
        None,
        None,
    ]


def test_an_object_given_twice_is_prepared_once_and_comes_back_twice():
    model = nn.Linear(1, 1)
    builder = BundleBuilder([model, "text", model], [True, False, False], earlier=[None] * 3)
    assert (builder.bundle.models, list(builder.placement.models)) == ([model], [True])
    ready = nn.ReLU()
    assert builder.results(Bundle(models=[ready])) == (ready, "text", ready)


def test_what_was_prepared_before_is_left_out():
    old, new, earlier = nn.Linear(1, 1), nn.Linear(1, 1), nn.ReLU()
    builder = BundleBuilder([old, new], [True, False], earlier=[earlier, None])
    assert (builder.bundle.models, list(builder.placement.models)) == ([new], [False])
    ready = nn.Tanh()
    assert builder.results(Bundle(models=[ready])) == (earlier, ready)


def test_a_prepared_object_may_stand_for_several_in_turn():
    loader = DataLoader([1])
    builder = BundleBuilder([loader, loader], [True, True], earlier=[None, None])
    assert builder.results(Bundle(loaders=[InTurn("train", "valid")])) == ("train", "valid")
    with pytest.raises(ConfigError, match="2 times, but it stands for 1"):
        builder.results(Bundle(loaders=[InTurn("train")]))
