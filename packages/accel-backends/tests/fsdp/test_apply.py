"""Which units a unit gathers ahead."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

from accel_backends.fsdp.apply import RunAxes, shard_model
from accel_backends.fsdp.config import FSDPConfig
from accel_backends.fsdp.gathering import set_prefetching
from accel_backends.fsdp.groups import shard_groups
from accel_ops.named_tensors import named_tensors

NAMES = ("first", "second", "third", "head")


def ahead(forward, backward):
    """Shard a model whose tail is made first, and return whom each unit gathers ahead."""
    model = nn.Sequential(OrderedDict((name, nn.Linear(4, 4)) for name in (NAMES[-1], *NAMES[:-1])))
    groups = shard_groups(
        model, named_tensors(model, include_buffers=False), units=NAMES[:-1], tail=[NAMES[-1]]
    )
    mesh = init_device_mesh("cpu", (2,))
    axes = RunAxes(torch.device("cpu"), mesh)
    shard_model(model, named_tensors(model), groups, FSDPConfig(), axes)
    set_prefetching(model, groups, forward=forward, backward=backward)
    name_of = {id(getattr(model, name)._get_fsdp_state()): name for name in NAMES}
    assert all(isinstance(getattr(model, name), FSDPModule) for name in NAMES)
    found = {}
    for name in NAMES:
        state = getattr(model, name)._get_fsdp_state()  # torch has no public way to ask
        found[name] = [
            [name_of[id(other)] for other in states]
            for states in (state._states_to_forward_prefetch, state._states_to_backward_prefetch)
        ]
    return found


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        (0, 0, {name: [[], []] for name in NAMES}),
        (
            1,
            0,
            {
                "first": [["second"], []],
                "second": [["third"], []],
                "third": [["head"], []],
                "head": [[], []],
            },
        ),
        (
            2,
            2,
            {
                "first": [["second", "third"], []],
                "second": [["third", "head"], ["first"]],
                "third": [["head"], ["second", "first"]],
                "head": [[], ["third", "second"]],
            },
        ),
    ],
)
def test_units_gather_those_that_run_next_and_the_tail_runs_last(world, forward, backward, expected):
    assert world(2).run(ahead, forward, backward) == [expected] * 2
