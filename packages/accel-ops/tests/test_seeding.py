from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from accel_ops import set_seed
from accel_state.errors import ConfigError


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_the_same_seed_gives_the_same_numbers_everywhere():
    set_seed(7)
    first = draw()
    set_seed(7)
    assert draw() == first
    set_seed(8)
    assert all(one != two for one, two in zip(draw(), first, strict=True))


def test_ranks_draw_alike_unless_seeded_by_device(make_ranks):
    def body(rank: int) -> float:
        set_seed(3, device_specific=True)
        return torch.initial_seed()

    # Threads share the generators, so one rank at a time is asked.
    assert [transport.rank for transport in make_ranks(2).transports] == [0, 1]
    from accel_ops.transport import use_transport

    seeds = []
    for transport in make_ranks(2).transports:
        with use_transport(transport):
            seeds.append(body(transport.rank))
    assert seeds == [3, 4]


def test_deterministic_algorithms_are_switched_on_only_when_asked():
    assert not torch.are_deterministic_algorithms_enabled()
    set_seed(1)
    assert not torch.are_deterministic_algorithms_enabled()
    try:
        set_seed(1, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_seed_outside_numpys_range_is_refused():
    with pytest.raises(ValueError, match="`seed` must lie between 0 and 4294967295, got -1"):
        set_seed(-1)


@pytest.mark.parametrize("seed", [1.5, "1", None])
def test_a_seed_that_is_no_int_is_refused_before_anything_is_seeded(seed):
    set_seed(3)
    wanted = random.random()
    set_seed(3)
    with pytest.raises(ConfigError, match="`seed` must be an int"):
        set_seed(seed)
    assert random.random() == wanted
