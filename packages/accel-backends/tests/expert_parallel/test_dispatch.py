"""Tokens reach the experts of other ranks and come back, with gradients, however unevenly they choose."""

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from accel_backends.expert_parallel.dispatch import DispatchedExperts
from accel_state.errors import ConfigError

NUM_EXPERTS = 4


def times(rows, numbers):
    return rows * (1.0 + numbers).unsqueeze(1)


def dispatched(chosen_by_rank):
    """Let expert n of all multiply its rows by n + 1; return outputs, gradients and how many rows came."""
    rank, num_own, seen = dist.get_rank(), NUM_EXPERTS // dist.get_world_size(), []

    def compute(rows, places):
        seen.append(len(rows))
        return times(rows, places + rank * num_own)

    forward = DispatchedExperts(
        lambda: None, compute=compute, num_experts=NUM_EXPERTS, group=dist.group.WORLD
    )
    chosen = torch.tensor(chosen_by_rank[rank])
    generator = torch.Generator().manual_seed(rank)
    inputs = [torch.randn(len(chosen), size, generator=generator).requires_grad_() for size in (3, 2)]
    results = []
    for way in (forward, lambda hidden, chosen, weights: alone(hidden, chosen, weights)):
        outputs = way(inputs[0], chosen, inputs[1])
        results.append([outputs.detach(), *torch.autograd.grad(outputs.square().sum(), inputs)])
    return (*results, seen[0])


def alone(hidden, chosen, weights):
    return sum(times(hidden, chosen[:, k]) * weights[:, k, None] for k in range(chosen.shape[1]))


@pytest.mark.parametrize(
    ("chosen", "num_rows"),
    [
        ([[[0, 3], [2, 1]], [[3, 2]]], [2, 4]),
        ([[[1, 0]], [[0, 1], [1, 0], [0, 1]]], [8, 0]),  # the second rank has no token
        ([[[2, 3]], [[0, 1]]], [2, 2]),  # each has the other's only
    ],
)
def test_tokens_are_computed_by_the_ranks_of_their_experts(world, chosen, num_rows):
    for rank, (found, expected, num) in enumerate(world(2).run(dispatched, chosen)):
        torch.testing.assert_close(found, expected)
        assert num == num_rows[rank]


def out_of_range():
    with pytest.raises(ConfigError, match="A token chose expert 4, but there are 4 experts"):
        dispatched([[[4, 0]]] * 2)


def test_an_expert_that_does_not_exist_is_refused(world):
    world(2).run(out_of_range)


class Waiting(TorchDispatchMode):
    """Collects the operations that read sizes back from a device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in {"bincount", "nonzero", "_local_scalar_dense", "_unique2"}:
            self.names.append(name)
        if name == "repeat_interleave" and func is not torch.ops.aten.repeat_interleave.self_int:
            if kwargs.get("output_size") is None:
                self.names.append(name)
        return func(*args, **kwargs)


def waits():
    with Waiting() as waiting:
        dispatched([[[0, 3], [2, 1]], [[3, 2]]])
    return waiting.names


def test_nothing_but_the_sizes_of_the_exchange_is_read_back(world):
    assert world(2).run(waits) == [[], []]
