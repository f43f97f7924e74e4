"""A rank's call of an operation: what the ranks compare, and how a difference is put into words."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.nested.description import iterate_tensors
from accel_ops.nested.structures import dataclass_items, is_dataclass_instance
from accel_state.arrival import by_process
from accel_state.user_warnings import OWN_PACKAGES, call_site

#: Ranks with another version of the exchange never agree.
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Call:
    """What this rank is about to do.

    Attributes:
        operation: The public function, for messages.
        arguments: Plain values that must be equal on all ranks.
        signature: Text that is equal on two ranks if structure, dtypes and shapes of their data fit together.
        data: The data itself, to describe it in messages.
        aspects: What ``signature`` stands for, in the order in which a difference is reported.
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
        """Return the call in plain values; the caller's line is looked up now."""
        compared = {"arguments": [repr(argument) for argument in self.arguments]}
        compared |= {aspect: ASPECTS[aspect](self.data) for aspect in self.aspects}
        return CallDescription(qualified(self.operation), call_site(), compared, shapes_of(self.data))


@dataclass(frozen=True, slots=True)
class CallDescription:
    """One rank's call in plain values, which can be sent to the other ranks."""

    operation: str
    call_site: str
    #: What must be equal on all ranks besides the operation, in the order in which a difference is reported.
    compared: Mapping[str, Any]
    #: Shapes in the structure of the input, for people.
    shapes: Any

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> CallDescription:
        return cls(**json.loads(text))


def signature_of(data: Any, aspects: Sequence[str]) -> str:
    """Return a signature for data of any kind."""
    return repr([ASPECTS[aspect](data) for aspect in aspects])


def qualified(operation: Callable[..., Any]) -> str:
    """Return the name by which a person knows an operation: `accel_ops.gather`, `their.module.function`."""
    package = operation.__module__.partition(".")[0]
    return f"{package if package in OWN_PACKAGES else operation.__module__}.{operation.__name__}"


def outline(data: Any, of_tensor: Callable[[torch.Tensor], Any]) -> Any:
    """Return nested lists and dicts with ``of_tensor(leaf)`` for each tensor and its type for any other leaf."""
    if isinstance(data, torch.Tensor):
        return of_tensor(data)
    if isinstance(data, Mapping):
        return {str(key): outline(value, of_tensor) for key, value in data.items()}
    if is_dataclass_instance(data):
        return {name: outline(value, of_tensor) for name, value in dataclass_items(data)}
    if isinstance(data, (list, tuple)):
        return [outline(value, of_tensor) for value in data]
    return type(data).__name__


def shapes_of(data: Any) -> Any:
    """Return nested lists and dicts of shapes."""
    return outline(data, lambda tensor: "nested" if tensor.is_nested else list(tensor.shape))


ASPECTS: dict[str, Callable[[Any], Any]] = {
    "structures": lambda data: outline(data, lambda tensor: "*"),
    "dtypes": lambda data: [str(tensor.dtype) for tensor in iterate_tensors(data)],
    "devices": lambda data: [tensor.device.type for tensor in iterate_tensors(data)],
    "dimensions": lambda data: [tensor.ndim for tensor in iterate_tensors(data)],
    "shapes": shapes_of,
}
SAME_SHAPES = ("structures", "dtypes", "shapes")
SAME_DIMENSIONS = ("structures", "dtypes", "dimensions")


def explain_difference(calls: Sequence[CallDescription]) -> str:
    """Return the message for the first difference between the calls of the ranks, which follow in rank order."""
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
