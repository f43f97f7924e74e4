from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from accel_ops import (
    broadcast,
    broadcast_object_list,
    copy_tensor_to_devices,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
)
from accel_ops.transport import Transport, current_rank, current_transport, use_transport
from accel_state.errors import StateError
from accel_state.partial_state import PartialState


def test_one_process_needs_no_group():
    assert current_transport().world_size == 1
    assert current_transport().rank == 0


def test_a_chosen_transport_is_used_while_the_context_is_open(make_ranks):
    chosen = make_ranks(2).transports[1]
    with use_transport(chosen):
        assert current_transport() is chosen
    assert type(current_transport()) is Transport


def look_around() -> tuple[int, int, str, str, bool]:
    PartialState()
    transport = current_transport()
    return (
        transport.rank,
        transport.world_size,
        str(transport.device_for(torch.device("meta"))),
        str(transport.device_for(torch.device("cuda"))),
        transport.is_checked(torch.device("cpu")) and not transport.is_checked(torch.device("cuda")),
    )


def test_the_process_group_is_used_where_there_is_one(world):
    assert world(2).run(look_around) == [(rank, 2, "cpu", "cpu", True) for rank in range(2)]


def new_group() -> list[int]:
    backend, store = dist.get_backend_config(), current_transport().store
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(backend, store=dist.PrefixStore("anew", store), rank=rank, world_size=size)
    return gather(torch.tensor(rank)).tolist()


def test_a_new_process_group_takes_over(world):
    assert world(2).run(new_group) == [[0, 1], [0, 1]]


def after_the_group_has_ended() -> list[str]:
    dist.barrier()
    PartialState().destroy_process_group()
    messages = []
    for operation in (
        lambda: gather(torch.ones(1)),
        lambda: reduce(torch.ones(1)),
        lambda: broadcast(torch.ones(1)),
        lambda: pad_across_processes(torch.ones(1)),
        lambda: gather_object([1]),
        lambda: broadcast_object_list([1]),
        lambda: copy_tensor_to_devices(None),
    ):
        with pytest.raises(StateError) as raised:
            operation()
        messages.append(str(raised.value))
    return messages


def test_several_processes_without_a_group_are_an_error(world):
    for rank, messages in enumerate(world(2).run(after_the_group_has_ended)):
        assert len(messages) == 7
        for message in messages:
            assert f"This is process {rank} of 2, but no process group is up" in message
            assert "`torch.distributed.init_process_group()`" in message


def test_before_the_state_is_built_the_environment_reports_how_many_processes_there_are(
    monkeypatch, fresh_state
):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StateError, match="This is process 1 of 2, but no process group is up"):
        gather_object([1])
    assert current_rank() == 1
