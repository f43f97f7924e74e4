from __future__ import annotations

import torch
import torch.distributed as dist

from accel_ops.transport import current_transport, use_transport
from accel_ops.transport.local import LocalTransport
from accel_state.partial_state import PartialState


def test_one_process_has_nobody_to_reach():
    assert current_transport().world_size == 1
    assert current_transport().rank == 0


def test_a_chosen_way_is_used_while_the_context_is_open(make_ranks):
    chosen = make_ranks(2).transports[1]
    with use_transport(chosen):
        assert current_transport() is chosen
    assert isinstance(current_transport(), LocalTransport)


def look_around() -> tuple[int, int, bool, str, bool]:
    PartialState()
    transport = current_transport()
    return (
        transport.rank,
        transport.world_size,
        transport is current_transport(),
        str(transport.home(torch.device("meta"))),
        transport.is_framed(torch.device("cpu")) and not transport.is_framed(torch.device("cuda")),
    )


def test_the_process_group_is_the_way_where_there_is_one(world):
    assert world(2).run(look_around) == [(rank, 2, True, "cpu", True) for rank in range(2)]


def new_group() -> bool:
    before = current_transport()
    backend, store = dist.get_backend_config(), before.store
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(backend, store=dist.PrefixStore("anew", store), rank=rank, world_size=size)
    after = current_transport()
    return after is not before and after.world_size == 2


def test_a_new_process_group_gets_a_way_of_its_own(world):
    assert world(2).run(new_group) == [True, True]
