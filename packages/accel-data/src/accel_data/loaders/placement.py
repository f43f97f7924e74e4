"""Copies of batches to the device."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from accel_ops.nested.move import moves_itself, send_to_device
from accel_ops.nested.structures import is_container, recursively_apply
from accel_ops.xla_rows import spread_rows

T = TypeVar("T")


def placed(
    batches: Iterator[tuple[Any, T]], device: torch.device, *, non_blocking: bool, is_pinned: bool
) -> Iterator[tuple[Any, T]]:
    """Yield the batches on ``device``, each with its step.

    With ``non_blocking``, batches in pinned memory are copied to a CUDA device one batch ahead.
    """
    if device.type == "cuda" and non_blocking and is_pinned:
        return by_side_stream(batches, device)
    if device.type == "xla":
        return _on_xla(batches, device)
    return ((send_to_device(batch, device, non_blocking=non_blocking), step) for batch, step in batches)


def by_side_stream(batches: Iterator[tuple[Any, T]], device: torch.device) -> Iterator[tuple[Any, T]]:
    """Copy one batch ahead, on a CUDA stream."""
    side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(batch: Any) -> tuple[Any, torch.cuda.Event | None]:
        if not _is_transparent(batch):
            # The allocator does not know which tensors of the object the other stream uses.
            return send_to_device(batch, device, non_blocking=True), None
        with torch.cuda.stream(side):
            copied = send_to_device(batch, device, non_blocking=True)
            done: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(side)
        return copied, done

    def finish(copied: Any, done: torch.cuda.Event | None) -> Any:
        if done is not None:
            current = torch.cuda.current_stream(device)
            current.wait_event(done)
            recursively_apply(lambda tensor: tensor.record_stream(current), copied)
        return copied

    before = None
    for batch, step in batches:
        started = start(batch), step
        if before is not None:
            yield finish(*before[0]), before[1]
        before = started
    if before is not None:
        yield finish(*before[0]), before[1]


def _on_xla(batches: Iterator[tuple[Any, T]], device: torch.device) -> Iterator[tuple[Any, T]]:
    """Copy to an XLA device, and execute the pending graph when the loop requests the next batch.

    If one process drives several devices, the rows of a batch are sharded over them.
    """
    package = importlib.import_module("torch_xla")
    runtime = importlib.import_module("torch_xla.runtime")
    spmd = importlib.import_module("torch_xla.distributed.spmd")
    mesh = spmd.get_global_mesh() if runtime.is_spmd() else None
    for batch, step in batches:
        package.sync()
        moved = send_to_device(batch, device)
        if mesh is not None:
            spread_rows(moved, mesh)
        yield moved, step
    package.sync()


def _is_transparent(batch: Any) -> bool:
    """Whether everything that is moved is a tensor in a container of a known type."""
    opaque: list[Any] = []

    def visit(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) and moves_itself(value):
            opaque.append(value)
        return value

    recursively_apply(visit, batch, test_type=lambda value: not is_container(value) or moves_itself(value))
    return not opaque
