from __future__ import annotations

import pytest
import torch

from accel_ops import synchronize_rng_state, synchronize_rng_states
from accel_state.enums import RNGType
from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError
from accel_state.partial_state import PartialState


def draw_after_sync(rng_types: list[str]) -> tuple[float, float]:
    rank = PartialState().process_index
    torch.manual_seed(rank)
    generator = torch.Generator().manual_seed(10 + rank)
    synchronize_rng_states(rng_types, generator)
    return torch.rand(1).item(), torch.rand(1, generator=generator).item()


@pytest.mark.parametrize(
    ("rng_types", "are_equal"),
    [
        ([], (False, False)),
        (["torch"], (True, False)),
        (["generator"], (False, True)),
        (["torch", "generator"], (True, True)),
    ],
)
def test_the_chosen_generators_get_the_state_of_rank_0(world, rng_types, are_equal):
    first, second = world(2).run(draw_after_sync, rng_types)
    assert (first[0] == second[0], first[1] == second[1]) == are_equal


def sync_one(with_generator: bool) -> list[float]:
    rank = PartialState().process_index
    generator = torch.Generator().manual_seed(rank)
    torch.manual_seed(rank)
    synchronize_rng_state(None, generator if with_generator else None)
    return [torch.rand(1).item(), torch.rand(1, generator=generator).item()]


def test_without_a_type_it_is_the_generator_if_there_is_one(world):
    (cpu, own), (other_cpu, other_own) = world(2).run(sync_one, True)
    assert own == other_own
    assert cpu != other_cpu
    (cpu, own), (other_cpu, other_own) = world(2).run(sync_one, False)
    assert cpu == other_cpu
    assert own != other_own


def test_one_process_keeps_its_state():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    synchronize_rng_state(RNGType.TORCH)
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_and_missing_generators_are_refused():
    with pytest.raises(ConfigError, match="`rng_type` must be one of torch, cuda, .*, got `numpy`"):
        synchronize_rng_state("numpy")
    with pytest.raises(ConfigError, match="`generator` is needed"):
        synchronize_rng_state("generator")
    assert issubclass(UnknownNameError, ConfigError)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(NotAvailableError, match="`?npu`?"):
        synchronize_rng_state("npu")
