"""Copies of batches to the device."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import torch

from accel_ops.nested.move import moves_itself, send_to_device
from accel_ops.nested.structures import is_container, recursively_apply
from accel_ops.xla_rows import spread_rows

T = TypeVar("T")


class Placement(Protocol):
    """Puts batches on a device."""

    #: Whether `all_of` takes a batch before the one before it is yielded.
    prefetches: bool

    def all_of(self, batches: Iterator[tuple[Any, T]]) -> Iterator[tuple[Any, T]]:
        """Yield the batches on the device, each with what comes with it."""
        ...


class DirectPlacement:
    """Copy when the batch is asked for."""

    prefetches = False

    def __init__(self, device: torch.device, *, non_blocking: bool) -> None:
        self._device = device
        self._non_blocking = non_blocking

    def all_of(self, batches: Iterator[tuple[Any, T]]) -> Iterator[tuple[Any, T]]:
        return ((self._moved(batch), step) for batch, step in batches)

    def _moved(self, batch: Any) -> Any:
        return send_to_device(batch, self._device, non_blocking=self._non_blocking)


class SideStreamPlacement:
    """Copy on a CUDA stream of its own, one batch ahead; for batches in pinned memory."""

    prefetches = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def _begin(self, batch: Any) -> tuple[Any, torch.cuda.Event | None]:
        """Start the copy."""
        if not _is_transparent(batch):
            # The allocator does not know which tensors of the object the other stream uses.
            return send_to_device(batch, self._device, non_blocking=True), None
        with torch.cuda.stream(self._side):
            copied = send_to_device(batch, self._device, non_blocking=True)
            done: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._side)
        return copied, done

    def _finish(self, begun: tuple[Any, torch.cuda.Event | None]) -> Any:
        """Return the batch on the device."""
        copied, done = begun
        if done is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(done)
            recursively_apply(lambda tensor: tensor.record_stream(current), copied)
        return copied

    def all_of(self, batches: Iterator[tuple[Any, T]]) -> Iterator[tuple[Any, T]]:
        before = None
        for batch, step in batches:
            begun = self._begin(batch), step
            if before is not None:
                yield self._finish(before[0]), before[1]
            before = begun
        if before is not None:
            yield self._finish(before[0]), before[1]


class XlaPlacement(DirectPlacement):
    """Copy to an XLA device, and run what the loop has traced when it asks for the next batch.

    Where one process drives several devices, the rows of a batch are spread over them.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, non_blocking=False)
        self._package = importlib.import_module("torch_xla")
        runtime = importlib.import_module("torch_xla.runtime")
        spmd = importlib.import_module("torch_xla.distributed.spmd")
        self._mesh = spmd.get_global_mesh() if runtime.is_spmd() else None

    def _moved(self, batch: Any) -> Any:
        self._package.sync()
        moved = super()._moved(batch)
        if self._mesh is not None:
            spread_rows(moved, self._mesh)
        return moved

    def all_of(self, batches: Iterator[tuple[Any, T]]) -> Iterator[tuple[Any, T]]:
        yield from super().all_of(batches)
        self._package.sync()


def placement(
    device: torch.device | str | int | None, *, non_blocking: bool, is_pinned: bool
) -> Placement | None:
    """Return what puts batches on ``device``, or None if there is nothing to do.

    On a machine without an accelerator batches are on the CPU already.

    Args:
        device: The target.
        non_blocking: Do not wait for the copies.
        is_pinned: Whether the batches are in pinned memory.
    """
    if device is None:
        return None
    device = torch.device(device)
    if device.type == "cpu" and not torch.accelerator.is_available():
        return None
    if device.type == "cuda" and non_blocking and is_pinned:
        return SideStreamPlacement(device)
    if device.type == "xla":
        return XlaPlacement(device)
    return DirectPlacement(device, non_blocking=non_blocking)


def _is_transparent(batch: Any) -> bool:
    """Whether everything that is moved is a tensor in a container of a known kind."""
    opaque: list[Any] = []

    def visit(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) and moves_itself(value):
            opaque.append(value)
        return value

    recursively_apply(visit, batch, test_type=lambda value: not is_container(value) or moves_itself(value))
    return not opaque
