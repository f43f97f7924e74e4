from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from accel_ops import set_seed
from accel_ops.transport import use_transport
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
    seeds = []
    for transport in make_ranks(2).transports:
        with use_transport(transport):
            set_seed(3, device_specific=True)
            seeds.append(torch.initial_seed())
            set_seed(3)
            assert torch.initial_seed() == 3
    assert seeds == [3, 4]


def test_the_rank_is_that_of_the_environment_before_the_state_is_built(monkeypatch, fresh_state):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    set_seed(3, device_specific=True)
    assert torch.initial_seed() == 4


def test_the_layout_is_that_of_the_environment_before_the_state_is_built(monkeypatch, fresh_state):
    variables = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    sizes = {"ACCELERATE_USE_PARALLELISM_CONFIG": "1", "PARALLELISM_CONFIG_TP_SIZE": "2"}
    for name, value in {**variables, **sizes, "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    set_seed(3, device_specific=True)
    assert torch.initial_seed() == 4


def test_deterministic_algorithms_are_switched_on_only_on_request(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
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


@pytest.mark.parametrize("given", [None, ":16:8"])
def test_cuda_is_deterministic_too_unless_the_user_has_chosen_how(monkeypatch, given):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given or "")
    if given is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    try:
        set_seed(1, deterministic=True)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == (given or ":4096:8")
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
def test_a_model_trains_deterministically_on_a_gpu():
    program = """
from accel_ops import set_seed
import torch
set_seed(0, deterministic=True)
layer = torch.nn.Linear(32, 4, device="cuda")
layer(torch.ones(4, 32, device="cuda")).sum().backward()
"""
    environment = {key: value for key, value in os.environ.items() if key != "CUBLAS_WORKSPACE_CONFIG"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
