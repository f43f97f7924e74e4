from __future__ import annotations

import pytest
import torch

from accel_ops import copy_tensor_to_devices, gather_tensor_shape
from accel_state.errors import ConfigError


@pytest.mark.parametrize("size", [3, 100_000])
def test_every_rank_receives_the_tensors_of_the_one_that_has_them(ranks, size):
    data = {"x": torch.arange(size), "y": [torch.tensor(True)]}
    for got in ranks(3).run(lambda rank: copy_tensor_to_devices(data if rank == 2 else None)):
        assert torch.equal(got["x"], data["x"])
        assert got["y"][0].item() is True


@pytest.mark.parametrize(("having", "told"), [((), "none"), ((0, 1), "0, 1")])
def test_exactly_one_rank_must_have_them(make_ranks, having, told):
    with pytest.raises(ConfigError, match=f"exactly one process.*It is given on: {told}"):
        make_ranks(2).run(lambda rank: copy_tensor_to_devices(torch.ones(1) if rank in having else None))


def test_one_process_gets_its_own_back():
    rows = torch.ones(1)
    assert copy_tensor_to_devices(rows) is rows
    assert copy_tensor_to_devices() is None


def test_the_shape_comes_with_the_number_of_the_dtype(ranks):
    for got in ranks(2).run(lambda rank: gather_tensor_shape(torch.ones(4, 5).half() if rank else None)):
        assert got.tolist() == [4, 5, 3]


def test_a_dtype_without_a_number_is_refused(make_ranks):
    with pytest.raises(ConfigError, match="TENSOR_TYPE_TO_INT"):
        make_ranks(2).run(
            lambda rank: gather_tensor_shape(torch.ones(1, dtype=torch.complex64) if rank else None)
        )


def receive() -> list[float]:
    from accel_state.partial_state import PartialState

    rank = PartialState().process_index
    return copy_tensor_to_devices(torch.tensor([1.5, 2.5]) if rank == 1 else None).tolist()


def test_real_processes_receive_them(world):
    assert world(2).run(receive) == [[1.5, 2.5]] * 2
