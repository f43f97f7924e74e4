from __future__ import annotations

from typing import ClassVar

import pytest

from accel_backends import select_strategy
from accel_backends.strategies.ddp import DDPStrategy
from accel_backends.strategies.selection import STRATEGIES
from accel_backends.strategies.single import SingleStrategy
from accel_state.devices import find_vendor
from accel_state.errors import ConfigError, UnknownNameError
from accel_state.topology import Topology

ONE, TWO = Topology(), Topology(rank=0, world_size=2)


class Plugin:
    strategy: ClassVar[str] = "single"


def test_the_number_of_processes_decides_by_default():
    assert type(select_strategy(topology=ONE)) is SingleStrategy
    assert type(select_strategy(topology=TWO)) is DDPStrategy


def test_a_name_or_a_plugin_decides():
    assert type(select_strategy("ddp", topology=ONE)) is DDPStrategy
    assert type(select_strategy(topology=TWO, plugin=Plugin())) is SingleStrategy
    assert type(select_strategy("single", topology=TWO, plugin=Plugin())) is SingleStrategy


def test_a_name_against_a_plugin_is_refused():
    with pytest.raises(ConfigError, match="`Plugin` configures the strategy `single`, but `ddp`"):
        select_strategy("ddp", topology=TWO, plugin=Plugin())


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Unknown strategy `dpp`.*Did you mean `ddp`"):
        select_strategy("dpp", topology=ONE)


def test_each_run_has_its_own_strategy():
    assert select_strategy(topology=ONE) is not select_strategy(topology=ONE)


def test_a_third_party_adds_a_strategy():
    class Mine(SingleStrategy):
        name = "mine"

    STRATEGIES.register("mine", Mine)
    try:
        assert type(select_strategy("mine", topology=ONE)) is Mine
    finally:
        STRATEGIES.unregister("mine")


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "deepspeed", "pipeline"])
def test_what_needs_collectives_is_refused_on_a_device_without(name):
    expected = f"`{name}` does not train on `mps` devices. It.*(talk to each other|trains on).*[Ll]eave out the plugin"
    with pytest.raises(ConfigError, match=expected):
        select_strategy(name, topology=ONE, vendor=find_vendor("mps"))
    assert type(select_strategy(topology=ONE, vendor=find_vendor("mps"))) is SingleStrategy


@pytest.mark.parametrize("device", ["mps", "musa", "neuron", "xla"])
def test_deepspeed_is_refused_on_devices_that_it_does_not_know(device):
    with pytest.raises(
        ConfigError, match=f"`deepspeed` does not train on `{device}` .*It trains on: cpu, cuda, hpu, ml"
    ):
        select_strategy("deepspeed", topology=ONE, vendor=find_vendor(device))
