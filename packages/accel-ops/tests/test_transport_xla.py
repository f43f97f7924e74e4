from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from accel_ops import (
    broadcast,
    broadcast_object_list,
    copy_tensor_to_devices,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
)
from accel_ops.transport import XlaTransport, current_transport, use_transport
from accel_state.errors import StateError
from accel_state.partial_state import PartialState
from accel_state.runtime import current_runtime


class Model:
    """What torch_xla's module does on one of two devices, if the other one holds the same."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def all_gather(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        self.calls.append("all_gather")
        return torch.cat([value, value], dim=dim)

    def all_reduce(self, kind: str, value: torch.Tensor) -> torch.Tensor:
        self.calls.append(kind)
        return value * 2

    def collective_broadcast(self, tensors: list[torch.Tensor], root_ordinal: int) -> None:
        self.calls.append(f"broadcast {root_ordinal}")
        for tensor in tensors:
            tensor.fill_(root_ordinal)


@pytest.fixture
def model(fresh_state: None) -> Model:
    PartialState(cpu=True)
    return Model()


def transport_of(model: Any) -> XlaTransport:
    transport = XlaTransport(model)
    transport.world_size = 2
    return transport


def test_structures_take_one_call_per_dtype(model):
    with use_transport(transport_of(model)):
        got = gather({"a": torch.ones(2, 2), "b": [torch.zeros(1), torch.tensor(3)]})
    assert got["a"].tolist() == [[1, 1]] * 4
    assert got["b"][1].tolist() == [3, 3]
    assert model.calls == ["all_gather", "all_gather"]  # one for each dtype


def test_sums_and_broadcasts_go_through_its_own_calls(model):
    transport = transport_of(model)
    with use_transport(transport):
        assert reduce([torch.ones(2)], "sum")[0].tolist() == [2, 2]
    assert transport.broadcast([torch.zeros(2)], source=1)[0].tolist() == [1, 1]
    assert model.calls == ["sum", "broadcast 1"]


def test_the_debug_mode_needs_a_process_group(model):
    with pytest.raises(StateError, match="needs the store of a process group, and there is none"):
        current_runtime().debug = True
        with use_transport(transport_of(model)):
            gather(torch.ones(1))


class SharedModel:
    """What torch_xla's module does for one of several ranks, over the transport of the tests."""

    def __init__(self, ranks: Any) -> None:
        self._ranks = ranks

    def all_gather(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        return self._ranks.all_gather([value.reshape(-1)])[0]

    def all_reduce(self, kind: str, value: torch.Tensor) -> torch.Tensor:
        return self._ranks.all_reduce([value], kind)[0]

    def collective_broadcast(self, tensors: list[torch.Tensor], root_ordinal: int) -> None:
        self._ranks.broadcast(tensors, source=root_ordinal)


def data_of(rank: int) -> dict[str, Any]:
    dtypes = (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64)
    return {
        **{str(dtype): torch.full((2, 3), rank + 1).to(dtype) for dtype in dtypes},
        "scalar": [torch.tensor(float(rank))],
        "empty": (torch.empty(0, 3),),
        "strided": torch.arange(6.0).view(2, 3).t() + rank,
        "large": torch.full((300_000,), rank + 1.0),
    }


OPERATIONS = {
    "gather": lambda rank: gather(data_of(rank)),
    "sum": lambda rank: reduce(data_of(rank), "sum"),
    "mean": lambda rank: reduce(data_of(rank), "mean", 0.5),
    "broadcast": lambda rank: broadcast(data_of(rank), 1),
    "pad": lambda rank: pad_across_processes([torch.ones(2 + rank, 3), torch.ones(4)], pad_index=-1),
    "gather_object": lambda rank: gather_object([rank, *range(900 * rank)]),
    "broadcast_object_list": lambda rank: broadcast_object_list([rank, {"a": rank}], 1),
    "copy_tensor_to_devices": lambda rank: copy_tensor_to_devices(data_of(1) if rank else None),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_gives_what_it_gives_over_a_process_group(model, make_ranks, operation):
    body = OPERATIONS[operation]
    ranks = make_ranks(3) if operation != "copy_tensor_to_devices" else make_ranks(2)
    num = len(ranks.transports)

    def over_xla(rank: int) -> Any:
        transport = XlaTransport(SharedModel(current_transport()))
        transport.rank, transport.world_size = rank, num
        transport.lock = threading.RLock()  # type: ignore[misc]  # here the ranks are threads of one process
        with use_transport(transport):
            return [body(rank) for _ in range(2)]

    for wanted, got in zip(make_ranks(num).run(body), ranks.run(over_xla), strict=True):
        torch.testing.assert_close(got, [wanted, wanted], rtol=0, atol=0)
