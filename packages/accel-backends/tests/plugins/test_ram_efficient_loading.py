from __future__ import annotations

import pytest

from accel_backends import (
    FullyShardedDataParallelPlugin,
    disable_fsdp_ram_efficient_loading,
    enable_fsdp_ram_efficient_loading,
)
from accel_state.environment import environ

VARIABLES = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.leaks_environment(*VARIABLES)
def test_it_is_switched_on_for_libraries_and_for_plugins():
    enable_fsdp_ram_efficient_loading()
    assert [environ.variable(name) for name in VARIABLES] == ["true", "true"]
    assert FullyShardedDataParallelPlugin(2).cpu_ram_efficient_loading is True


@pytest.mark.leaks_environment(*VARIABLES)
def test_a_refusal_of_fsdp_is_not_overruled(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    enable_fsdp_ram_efficient_loading()
    assert environ.variable("ACCELERATE_USE_FSDP") == "false"


@pytest.mark.leaks_environment(*VARIABLES)
def test_it_is_switched_off():
    enable_fsdp_ram_efficient_loading()
    disable_fsdp_ram_efficient_loading()
    assert environ.read("fsdp_cpu_ram_efficient_loading") is False
    assert environ.read("use_fsdp") is True
