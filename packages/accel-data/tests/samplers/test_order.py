from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from accel_data import BatchSamplerShard
from accel_data.samplers.batch_shard import SamplerPass
from accel_data.samplers.order import EpochOrder

SAMPLERS: dict[str, Callable[[torch.Generator | None], Sampler[int]]] = {
    "sequential": lambda _: SequentialSampler(range(50)),
    "random": lambda generator: RandomSampler(range(50), generator=generator),
    "fewer": lambda generator: RandomSampler(range(50), num_samples=20, generator=generator),
    "more": lambda generator: RandomSampler(range(50), num_samples=120, generator=generator),
    "replacement": lambda generator: RandomSampler(
        range(50), replacement=True, num_samples=70, generator=generator
    ),
    "subset": lambda generator: SubsetRandomSampler([4, 8, 15, 16, 23, 42], generator=generator),
    "weighted": lambda generator: WeightedRandomSampler([0.1, 0.5, 0.4], 30, generator=generator),
}


def shard(sampler: Any) -> BatchSamplerShard:
    return BatchSamplerShard(BatchSampler(sampler, 2, drop_last=False))


def indices(run: SamplerPass) -> list[int]:
    return [index for batch in run for index in batch]


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_order_and_the_generator_afterwards_are_those_of_iterating(name: str) -> None:
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    iterated, drawn = (SAMPLERS[name](generator) for generator in generators)
    for _ in range(2):
        assert indices(shard(drawn).new_pass()) == list(iterated)
        assert torch.equal(generators[0].get_state(), generators[1].get_state())


@pytest.mark.parametrize("name", SAMPLERS)
def test_without_a_generator_the_default_one_is_drawn_from_as_torch_does(name: str) -> None:
    torch.manual_seed(5)
    expected, after = list(SAMPLERS[name](None)), torch.rand(())
    torch.manual_seed(5)
    assert indices(shard(SAMPLERS[name](None)).new_pass()) == expected
    assert torch.rand(()) == after


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_order_is_drawn_again_from_its_state_and_the_default_generator_stays(name: str) -> None:
    batches = shard(SAMPLERS[name](None))
    first = EpochOrder(None, batches.batch_sampler)
    expected = indices(batches.new_pass(order=first))
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = EpochOrder(None, batches.batch_sampler, state=before if first.state is None else first.state)
    assert indices(batches.new_pass(order=again)) == expected
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sampler_with_its_own_order_may_have_no_end() -> None:
    class Reversed(RandomSampler):
        def __iter__(self) -> Any:
            return reversed(list(super().__iter__()))

    assert shard(Reversed(range(5))).plan() is None
    assert shard(BatchSampler(range(4), 2, False)).plan() is None
    assert shard([3, 1]).plan() is not None
