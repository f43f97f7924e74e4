"""Run one rank of a large run on any machine: the other ranks are not there, and tensors of numbers have no memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist

# Private, as of torch 2.13: fake tensors (https://github.com/pytorch/pytorch/issues/95791), the fake process group
# (https://github.com/pytorch/pytorch/issues/111205) and the tracker of memory have no public names.
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from accel.planning.collectives import DispatchMode
from accel_backends.fsdp.values import replace_tensor
from accel_ops.named_tensors import named_tensors
from accel_ops.transport import ProcessGroupTransport, use_transport
from accel_state.errors import StateError
from accel_state.runtime import has_runtime, reset_runtime

_MOST_KNOWN_BYTES = 1 << 25
_RANKS_OF_A_MACHINE = 8
_ATEN = torch.ops.aten
_DEPENDS_ON_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class _KnownNumbers(DispatchMode):
    """Keeps the values of whole numbers that come from whole numbers, such as tokens, positions, masks and counts.

    Code that decides by them runs as it does in training. What depends on other values is 0, and of experts all are
    chosen equally often.
    """

    def run(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_plain = isinstance(operation, torch._ops.OpOverload)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        is_known = is_plain and not any(isinstance(one, FakeTensor) or one.is_meta for one in given)
        if is_known and given and (
            operation.namespace == "c10d" or _DEPENDS_ON_VALUES & set(operation.tags)
        ):
            return _really(operation, args, kwargs)
        if operation is _ATEN._local_scalar_dense.default:
            return 0.0 if args[0].is_floating_point() else 0
        if operation is _ATEN._grouped_mm.default and args[0].dtype is not torch.bfloat16:
            # Without values torch has products of groups in this dtype alone (torch 2.13).
            given_as = [one.to(torch.bfloat16) for one in args[:2]]
            return operation(*given_as, *args[2:], **kwargs).to(args[0].dtype)
        result = operation(*args, **kwargs)
        if operation is _ATEN.topk.default:
            return result[0], _chosen_equally(result[1], num_experts=args[0].shape[-1])
        if not is_known or operation.namespace != "aten" or not all(map(_is_whole, tree_leaves(result))):
            return result
        # Bytes that torch makes are those of an object, which it puts into storages that have no memory here.
        is_object = not given and isinstance(result, torch.Tensor) and result.dtype is torch.uint8
        return result if is_object else _really(operation, args, kwargs)


def _really(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with unset_fake_temporarily():
        return operation(*args, **kwargs)


def _is_whole(one: object) -> bool:
    """Whether it is no tensor, or one of few whole numbers."""
    return not isinstance(one, torch.Tensor) or (
        not (one.is_floating_point() or one.is_complex() or one.is_meta) and one.nbytes < _MOST_KNOWN_BYTES
    )


def _chosen_equally(indices: torch.Tensor, *, num_experts: int) -> torch.Tensor:
    with unset_fake_temporarily():
        return torch.arange(indices.numel()).view(indices.shape) % max(num_experts, 1)


class _AlikeRanks(ProcessGroupTransport):
    """Ranks that are not there make the calls that this one makes."""

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [tensor.expand(self.world_size, -1).clone() for tensor in tensors]


class Memory(MemTracker):
    """Torch's tracker of the memory of a step, without its figures of each module, which take most of its time."""

    supports_higher_order_operators: ClassVar[bool] = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether torch compiles under this mode; under others it runs code as it is."""
        return True

    def _unused(self, *_: object) -> None:
        """Stand in for what is called around each module."""

    _pre_fw_hook = _post_fw_hook = _pre_bw_hook = _post_bw_hook = _unused

    def _update_peak_stats(self, _state: object) -> None:
        for device, now in self._curr_mem_snap.items():
            if self._peak_mem.get(device, 0) < now["Total"]:
                self._peak_mem[device] = now["Total"]
                self._peak_mem_snap[device] = dict(now)

    def peak(self) -> dict[str, int]:
        """Return the bytes at the time when there were most, by what they are for; ``Total`` is all of them."""
        snapshot = self.get_tracker_snapshot("peak")
        return {getattr(kind, "value", kind): size for kind, size in snapshot[torch.device("cpu")].items()}


@contextmanager
def rank_alone(rank: int, num_ranks: int) -> Iterator[None]:
    """Make this process in the block one rank of a run whose other ranks are not there.

    Raises:
        StateError: If this process is part of a run already.
    """
    if has_runtime() or dist.is_initialized():
        raise StateError(
            "A plan is made by a process that is not part of a run, and this one has an `Accelerator` or a process "
            "group. Make it before them, or run `accel plan`."
        )
    local = min(num_ranks, _RANKS_OF_A_MACHINE)
    own = {"RANK": rank, "LOCAL_RANK": rank % local, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": local}
    before = dict(os.environ)
    os.environ |= {name: str(number) for name, number in own.items()}
    try:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
        yield
    finally:
        reset_runtime()
        if dist.is_initialized():
            dist.destroy_process_group()
        for name in own:
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


@contextmanager
def no_values() -> Iterator[None]:
    """Give tensors that are made in the block no memory, but for a few whole numbers. Groups exist before."""
    group = dist.group.WORLD
    assert group is not None
    modes = (
        use_transport(_AlikeRanks(group)),
        FakeTensorMode(allow_non_fake_inputs=True),
        _KnownNumbers(),  # type: ignore[no-untyped-call]
    )
    with modes[0], modes[1], modes[2]:
        yield


def without_memory(model: torch.nn.Module) -> None:
    """Replace what a model has on the meta device by tensors without memory on the CPU; call it under `no_values`."""
    for found in named_tensors(model):
        replace_tensor(found, torch.zeros_like(found.tensor, device="cpu", requires_grad=False))
