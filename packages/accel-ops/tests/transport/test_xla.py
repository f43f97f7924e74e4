from __future__ import annotations

from typing import Any

import pytest
import torch

from accel_ops import gather, reduce
from accel_ops.transport import use_transport
from accel_ops.transport.xla import XlaTransport
from accel_state.errors import StateError
from accel_state.partial_state import PartialState


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
    assert model.calls == ["all_gather", "all_gather"]


def test_sums_and_broadcasts_go_through_its_own_calls(model):
    transport = transport_of(model)
    with use_transport(transport):
        assert reduce([torch.ones(2)], "sum")[0].tolist() == [2, 2]
    assert transport.broadcast(torch.zeros(2), source=1).tolist() == [1, 1]
    assert model.calls == ["sum", "broadcast 1"]


def test_the_debug_mode_needs_a_process_group(model):
    with pytest.raises(StateError, match="store of a process group, and there is none"):
        transport_of(model).bulletin()
