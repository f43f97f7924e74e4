"""Before a collective the ranks compare digests of their calls: all continue, or all raise and name the difference."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from accel_ops.nested.describe import iterate_tensors
from accel_ops.nested.structures import dataclass_items, is_dataclass_instance
from accel_ops.transport import Transport
from accel_state.arrival import await_arrival, by_process, earlier_divergence
from accel_state.errors import DistributedOperationException
from accel_state.lost_rank import note_wait
from accel_state.runtime import current_runtime, has_runtime
from accel_state.user_warnings import OWN_PACKAGES, call_site

#: Part of every digest, so that ranks with different versions of this exchange raise. Increase it with the format.
_VERSION = 3
_CPU = torch.device("cpu")
#: The digest, and the size of the payload.
_HEADER_BYTES = 24
#: Larger payloads take a second all-gather. Attaching every payload would make the first one's size vary.
_MOST_ATTACHED_BYTES = 1 << 12
#: Limit for the payloads of all ranks together.
_MOST_RECEIVED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Call:
    """The collective that this rank is about to call.

    Attributes:
        operation: The public function, for messages.
        arguments: Plain values that must be equal on all ranks.
        signature: Text that is equal on two ranks if structure, dtypes and shapes of their data fit together.
        data: The data, described in messages.
        aspects: The parts of ``signature``, in the order in which differences are reported.
    """

    operation: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    signature: str = ""
    data: Any = None
    aspects: Sequence[str] = ()

    def digest(self) -> tuple[int, int]:
        """Return two numbers that are equal on all ranks that make the same call."""
        text = f"{_VERSION} {qualified(self.operation)} {self.arguments!r} {self.signature}"
        first, second = struct.unpack("<qq", hashlib.blake2b(text.encode(), digest_size=16).digest())
        return first, second

    def describe(self) -> CallDescription:
        """Return the call in plain values, with the line that makes it now."""
        compared = {"arguments": [repr(argument) for argument in self.arguments]}
        compared |= {aspect: _ASPECTS[aspect](self.data) for aspect in self.aspects}
        return CallDescription(qualified(self.operation), call_site(), compared, _shapes_of(self.data))


@dataclass(frozen=True, slots=True)
class CallDescription:
    """One rank's call in plain values, which can be sent to the other ranks."""

    operation: str
    call_site: str
    #: Values that must be equal on all ranks in addition to the operation; differences are reported in this order.
    compared: Mapping[str, Any]
    #: Shapes in the structure of the input, for people.
    shapes: Any

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> CallDescription:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Payloads:
    """Bytes that the ranks sent with their calls.

    Attributes:
        sizes: The bytes that each rank wants to send.
        attached: ``(world_size, room)`` uint8 on the CPU: the bytes of each rank, undefined for a larger payload.
    """

    sizes: list[int]
    attached: torch.Tensor

    def of(self, rank: int) -> bytes | None:
        """Return the bytes of a rank, None if they did not fit."""
        size = self.sizes[rank]
        return None if size > self.attached.shape[1] else self.attached[rank, :size].numpy().tobytes()


def is_debugging() -> bool:
    """Whether debug mode is on (``ACCELERATE_DEBUG_MODE``, ``accel launch --debug``)."""
    return has_runtime() and current_runtime().debug


def must_check(transport: Transport, devices: Collection[torch.device]) -> bool:
    """Whether the ranks compare their calls before tensors on these devices are sent.

    On the CPU always, on accelerators in debug mode. Without tensors there is no device to wait for, so they do.
    """
    return is_debugging() or any(transport.is_checked(device) for device in devices or (_CPU,))


# Why: docs/decisions/0002-collectives-compare-a-digest-first.md
def agree(transport: Transport, call: Call, payload: bytes = b"") -> Payloads:
    """Compare this call on all ranks, and return the payloads that are small enough to be attached.

    One all-gather, of the same size for every call: ranks in different operations must still receive each other's
    digest (docs/decisions/0002-collectives-compare-a-digest-first.md). Every rank must call it; it blocks until all
    have.

    Raises:
        DistributedOperationException: On every rank, if the calls differ; in debug mode also if a rank does
            not arrive in time.
    """
    if is_debugging():
        ranks, name = (transport.store, transport.rank, transport.world_size), qualified(call.operation)
        await_arrival(*ranks, name, data=str(_shapes_of(call.data)), kind="collective")
    try:
        digests, payloads = _swap(transport, call, payload)
    except RuntimeError as error:
        note_wait(error, qualified(call.operation))
        raise
    if any(digest != digests[0] for digest in digests):
        text = call.describe().to_json().encode()
        # Every rank has seen the same digests, so all take part.
        texts = _all_payloads(transport, text, _swap(transport, call, text)[1])
        hint = earlier_divergence(transport.store, world_size=transport.world_size) if is_debugging() else ""
        raise DistributedOperationException(
            explain_difference([CallDescription.from_json(text) for text in texts]) + hint
        )
    return payloads


def exchange(transport: Transport, call: Call, payload: bytes) -> list[bytes]:
    """Compare this call on all ranks, and return the payloads of all ranks, in rank order.

    Every rank must call it; it blocks until all have.

    Raises:
        DistributedOperationException: As :func:`agree`.
    """
    return _all_payloads(transport, payload, agree(transport, call, payload))


def to_tensor(payload: bytes, *, size: int) -> torch.Tensor:
    """Return bytes as a CPU tensor of ``size`` elements; the rest is undefined."""
    row = np.empty(size, dtype=np.uint8)
    row[: len(payload)] = np.frombuffer(payload, dtype=np.uint8)
    return torch.from_numpy(row)


def _swap(transport: Transport, call: Call, payload: bytes) -> tuple[list[list[int]], Payloads]:
    """Return the digest of each rank's call, and the payloads."""
    room = min(_MOST_ATTACHED_BYTES, _MOST_RECEIVED_BYTES // transport.world_size // 8 * 8)
    header = struct.pack("=qqq", *call.digest(), len(payload))
    row = to_tensor(header + (payload if len(payload) <= room else b""), size=_HEADER_BYTES + room)
    (rows,) = transport.all_gather([row.to(transport.device_for(_CPU))])
    rows = rows.to(_CPU)
    heads = rows[:, :_HEADER_BYTES].view(torch.int64).tolist()
    return [head[:2] for head in heads], Payloads([head[2] for head in heads], rows[:, _HEADER_BYTES:])


def _all_payloads(transport: Transport, sent: bytes, payloads: Payloads) -> list[bytes]:
    """Return the payloads of all ranks; a second all-gather if one is too large to be attached."""
    attached = [payloads.of(rank) for rank in range(transport.world_size)]
    if None not in attached:
        return [payload for payload in attached if payload is not None]
    (rows,) = transport.all_gather([to_tensor(sent, size=max(payloads.sizes)).to(transport.device_for(_CPU))])
    return [row[:size].tobytes() for row, size in zip(rows.cpu().numpy(), payloads.sizes, strict=True)]


def qualified(operation: Callable[..., Any]) -> str:
    """Return the public name of an operation: `accel_ops.gather`, `their.module.function`."""
    package = operation.__module__.partition(".")[0]
    return f"{package if package in OWN_PACKAGES else operation.__module__}.{operation.__name__}"


def signature_of(data: Any, aspects: Sequence[str]) -> str:
    """Return a signature for data of any kind."""
    return repr([_ASPECTS[aspect](data) for aspect in aspects])


def _outline(data: Any, of_tensor: Callable[[torch.Tensor], Any]) -> Any:
    """Return nested lists and dicts with ``of_tensor(leaf)`` for each tensor and its type for any other leaf."""
    if isinstance(data, torch.Tensor):
        return of_tensor(data)
    if isinstance(data, Mapping):
        return {str(key): _outline(value, of_tensor) for key, value in data.items()}
    if is_dataclass_instance(data):
        return {name: _outline(value, of_tensor) for name, value in dataclass_items(data)}
    if isinstance(data, (list, tuple)):
        return [_outline(value, of_tensor) for value in data]
    return type(data).__name__


def _shapes_of(data: Any) -> Any:
    return _outline(data, lambda tensor: "nested" if tensor.is_nested else list(tensor.shape))


_ASPECTS: dict[str, Callable[[Any], Any]] = {
    "structures": lambda data: _outline(data, lambda tensor: "*"),
    "dtypes": lambda data: [str(tensor.dtype) for tensor in iterate_tensors(data)],
    "dimensions": lambda data: [tensor.ndim for tensor in iterate_tensors(data)],
    "shapes": _shapes_of,
}
SAME_SHAPES = ("structures", "dtypes", "shapes")
SAME_DIMENSIONS = ("structures", "dtypes", "dimensions")


def explain_difference(calls: Sequence[CallDescription]) -> str:
    """Return the message for the first difference between the calls of the ranks, given in rank order."""
    if len({call.operation for call in calls}) > 1:
        lines = [f"`{call.operation}` on {call.shapes}" for call in calls]
        return _message(": the processes called different operations.", "Operations", lines, calls)
    for aspect in calls[0].compared:
        values = [call.compared.get(aspect) for call in calls]
        if all(value == values[0] for value in values):
            continue
        problem = f" due to mismatches of {aspect}. They must be the same on all processes."
        if aspect == "shapes":
            problem = " due to shape mismatches. All shapes across devices must be valid."
        title = f"Operation: `{calls[0].operation}`\nInput {aspect}"
        return _message(problem, title, [str(value) for value in values], calls)
    return _message(
        ": the processes called it with different values, or run different versions of accel.",
        "Calls",
        [f"`{call.operation}`, {dict(call.compared)}" for call in calls],
        calls,
    )


def _message(problem: str, title: str, lines: Sequence[str], calls: Sequence[CallDescription]) -> str:
    return (
        f"Cannot apply desired operation{problem}\n\n{title}:\n{by_process(lines)}\n"
        f"Called from:\n{by_process([call.call_site for call in calls])}"
    )
