from __future__ import annotations

import dataclasses
import sys

import pytest

from accel_data import DataLoaderConfiguration
from accel_state.errors import ConfigError, NotAvailableError


def test_the_defaults_are_the_documented_ones() -> None:
    assert dataclasses.asdict(DataLoaderConfiguration()) == {
        "split_batches": False,
        "dispatch_batches": None,
        "even_batches": True,
        "use_seedable_sampler": False,
        "data_seed": None,
        "non_blocking": False,
        "use_stateful_dataloader": False,
    }


def test_a_seed_without_the_seedable_sampler_has_no_effect_and_is_reported() -> None:
    with pytest.warns(UserWarning, match="`data_seed` has no effect"):
        DataLoaderConfiguration(data_seed=3)


@pytest.mark.parametrize("seed", ["3", 1.5, True])
def test_a_seed_is_an_integer(seed: object) -> None:
    with pytest.raises(ConfigError, match="`data_seed` must be an int or None"):
        DataLoaderConfiguration(data_seed=seed, use_seedable_sampler=True)  # type: ignore[arg-type]


def test_the_stateful_loader_needs_torchdata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdata", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotAvailableError, match="Run `pip install torchdata`"):
        DataLoaderConfiguration(use_stateful_dataloader=True)
