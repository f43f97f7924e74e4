import pytest
import torch

from accel_ops.collectives import averaging
from accel_ops.collectives.averaging import WeightAverage, accumulable
from accel_state import PartialState


def tensors(rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rank)
    shapes = [(3, 4), (5,), (), (2, 2, 2), (0,)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def averaged(dtype, *, small_bytes=None):
    rank = PartialState(cpu=True).process_index
    usual = averaging.SMALL_BYTES
    try:
        if small_bytes is not None:
            averaging.SMALL_BYTES = small_bytes
        mine = tensors(rank, dtype)
        WeightAverage(mine).run()
    finally:
        averaging.SMALL_BYTES = usual
    return mine


def expected(dtype):
    pairs = zip(tensors(0, dtype), tensors(1, dtype), strict=True)
    return [((accumulable(one) + accumulable(other)) / 2).to(dtype) for one, other in pairs]


@pytest.mark.parametrize("small_bytes", [None, 1, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_rank_gets_the_mean_packed_or_alone(world, dtype, small_bytes):
    for means in world(2).run(averaged, dtype, small_bytes=small_bytes):
        assert all(torch.equal(mean, wanted) for mean, wanted in zip(means, expected(dtype), strict=True))


def large_halves():
    PartialState(cpu=True)
    tensor = torch.full((4,), 60000.0, dtype=torch.float16)
    WeightAverage([tensor]).run()
    return tensor.tolist()


def test_a_mean_of_halves_does_not_overflow_on_its_way(world):
    assert world(2).run(large_halves) == [[60000.0 // 32 * 32] * 4] * 2


def mixed():
    rank = PartialState(cpu=True).process_index
    complex_one = torch.full((2,), complex(rank, 1))
    turned = torch.arange(6.0).reshape(2, 3).t() * (rank + 1)
    double = torch.full((2,), float(rank), dtype=torch.float64)
    WeightAverage([complex_one, turned, double]).run()
    return complex_one.tolist(), turned.tolist(), double.tolist()


def test_dtypes_and_layouts_may_differ(world):
    turned = (torch.arange(6.0).reshape(2, 3).t() * 1.5).tolist()
    assert world(2).run(mixed) == [([0.5 + 1j] * 2, turned, [0.5, 0.5])] * 2


def moved():
    rank = PartialState(cpu=True).process_index
    weights = [torch.nn.Parameter(torch.full((3,), float(rank))) for _ in range(2)]
    average = WeightAverage(weights)
    average.run()
    weights[0].data = torch.full((3,), 10.0 * rank)
    average.run()
    return [weight.tolist() for weight in weights]


def test_data_that_was_replaced_since_is_what_is_averaged(world):
    assert world(2).run(moved) == [[[5.0] * 3, [0.5] * 3]] * 2
