"""Counts the collectives that a rank takes part in, by kind, group and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

_KINDS = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
    "c10d::broadcast_": "broadcast",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::alltoall_": "all_to_all",
    "c10d::send": "send",
    "c10d::recv_": "receive",
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_reduce_": "all_reduce",
    "_c10d_functional::all_to_all_single": "all_to_all",
}
_QUIET = ("wait_tensor", "_wrap_tensor_autograd", "barrier")

Counted = Counter[tuple[str, tuple[int, ...], int]]
"""How often, by kind, ranks of the group, and bytes of the largest tensor."""


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operations on the parts of cut tensors that a rank has, and lets `torch.compile` compile under it."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether torch compiles under this mode; under others it runs the code as it is."""
        return True

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # so that it comes again with the part of this rank
        return self.run(operation, args, kwargs or {})

    def run(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation."""
        raise NotImplementedError


class _Counting(DispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: Counted = Counter()

    def run(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = operation(*args, **kwargs)
        name = operation.name().partition(".")[0]
        if "c10d" in name.partition("::")[0] and not name.endswith(_QUIET):
            given = (*args, *kwargs.values())
            ranks = tuple(_ranks(given))
            if len(ranks) > 1:
                self.counted[_KINDS[name], ranks, max(map(_size, (*given, result)))] += 1
        return result


@contextmanager
def counted_collectives() -> Iterator[Counted]:
    """Count in the block; groups of one rank are left out."""
    mode = _Counting()
    with mode:
        yield mode.counted


def _ranks(given: tuple[Any, ...]) -> list[int]:
    for one in given:
        if isinstance(one, torch.ScriptObject):
            try:
                return dist.get_process_group_ranks(dist.ProcessGroup.unbox(one))
            except RuntimeError:  # the operation of a reduction
                continue
        if isinstance(one, str) and one not in ("sum", "avg", "max", "min"):
            group = dist.distributed_c10d._resolve_process_group(one)  # type: ignore[attr-defined,arg-type]
            return dist.get_process_group_ranks(group)
    raise AssertionError(f"no group among {given}")


def _size(value: Any) -> int:
    """Return the bytes of a tensor, or of all in a list, nested or not."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_size, value)) if isinstance(value, (list, tuple)) else 0
