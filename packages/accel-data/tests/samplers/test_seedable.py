from __future__ import annotations

import torch

from accel_data import SeedableRandomSampler


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    sampler = SeedableRandomSampler(range(20), data_seed=4)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sorted(first) == list(range(20))
    torch.rand(17)
    again = SeedableRandomSampler(range(20), data_seed=4)
    again.set_epoch(1)
    assert list(again) == second


def test_seed_and_epoch_add_up_to_the_seed_of_the_generator() -> None:
    sampler = SeedableRandomSampler(range(20), data_seed=4)
    sampler.set_epoch(3)
    assert list(sampler) == torch.randperm(20, generator=torch.Generator().manual_seed(7)).tolist()


def test_an_epoch_left_early_comes_again() -> None:
    sampler = SeedableRandomSampler(range(20), data_seed=4)
    first = next(iter(sampler))
    assert sampler.epoch == 0
    assert next(iter(sampler)) == first


def test_without_a_seed_it_takes_torchs() -> None:
    torch.manual_seed(11)
    assert SeedableRandomSampler(range(20)).initial_seed == 11


def test_the_generator_of_torch_is_left_unchanged() -> None:
    before = torch.get_rng_state()
    list(SeedableRandomSampler(range(20), data_seed=4))
    assert torch.equal(torch.get_rng_state(), before)
