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

from accel_data.samplers.order import TensorOrder, draw_order, has_order

SAMPLERS: dict[str, Callable[[torch.Generator], Sampler[int]]] = {
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


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_order_and_the_generator_afterwards_are_those_of_iterating(name: str) -> None:
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    iterated, drawn = (SAMPLERS[name](generator) for generator in generators)
    for _ in range(2):
        order = draw_order(drawn)
        assert order is not None
        assert list(order[:]) == list(iterated)
        if getattr(order, "finish", None):
            order.finish()  # type: ignore[attr-defined]
        assert torch.equal(generators[0].get_state(), generators[1].get_state())


def test_without_a_generator_the_global_one_is_drawn_from_as_torch_does() -> None:
    torch.manual_seed(5)
    expected = list(RandomSampler(range(30)))
    torch.manual_seed(5)
    order = draw_order(RandomSampler(range(30)))
    assert order is not None
    assert list(order[:]) == expected


def test_a_sampler_with_an_order_of_its_own_is_not_guessed() -> None:
    class Reversed(RandomSampler):
        def __iter__(self) -> Any:
            return reversed(list(super().__iter__()))

    assert not has_order(Reversed(range(5)))
    assert draw_order(Reversed(range(5))) is None
    assert not has_order(BatchSampler(range(4), 2, False))  # type: ignore[arg-type]


def test_blocks_join_without_a_seam() -> None:
    numbers = torch.arange(100_000)
    order = TensorOrder(numbers)
    assert len(order) == 100_000
    for low, high in ((0, 10), (16_380, 16_390), (50_000, 90_000), (5, 7), (99_990, 100_000)):
        assert order[low:high] == list(range(low, high))
    assert order[70_001] == 70_001
