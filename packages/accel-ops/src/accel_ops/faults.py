"""Say what went wrong when ranks meet in a collective with calls that do not fit together."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import torch

from accel_ops.description import iterate_tensors
from accel_ops.frames import DIGEST_BYTES, Exchange, exchange_bytes
from accel_ops.structures import dataclass_items, is_dataclass_instance
from accel_ops.transport import Transport
from accel_state.errors import DistributedOperationException

_REPORT_DIGEST = b"accel fault".ljust(DIGEST_BYTES, b"\0")
_OWN_PACKAGES = frozenset(
    {"accel", "accel_state", "accel_ops", "accel_data", "accel_bigmodel", "accel_backends", "accel_trackers"}
)


@dataclass(frozen=True, slots=True)
class CallReport:
    """One rank's call of an operation, in plain values that can be written as JSON."""

    operation: str
    call_site: str
    #: What must be equal on all ranks besides the operation, by name, in the order in which a difference is
    #: reported.
    compared: Mapping[str, Any]
    #: Shapes in the structure of the input, for people.
    shapes: Any

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> CallReport:
        return cls(**json.loads(text))


def qualified(operation: Callable[..., Any]) -> str:
    """Return the name by which a person knows an operation: `accel_ops.gather`, `their.module.function`."""
    package = operation.__module__.partition(".")[0]
    return f"{package if package in _OWN_PACKAGES else operation.__module__}.{operation.__name__}"


def call_site() -> str:
    """Return file, line and function of the innermost frame outside these packages."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _OWN_PACKAGES | {
            "contextlib",
            "functools",
        }:
            break
        frame = frame.f_back
    assert frame is not None
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def shapes_only(data: Any) -> Any:
    """Return nested lists and dicts of shapes; a leaf that is no tensor is named by its type."""
    if isinstance(data, torch.Tensor):
        return list(data.shape) if not data.is_nested else "nested"
    if isinstance(data, Mapping):
        return {str(key): shapes_only(value) for key, value in data.items()}
    if is_dataclass_instance(data):
        return {name: shapes_only(value) for name, value in dataclass_items(data)}
    if isinstance(data, (list, tuple)):
        return [shapes_only(value) for value in data]
    return type(data).__name__


def outline_only(data: Any) -> Any:
    """Return what :func:`shapes_only` does with every tensor as a ``*``: the structure alone."""
    if isinstance(data, torch.Tensor):
        return "*"
    if isinstance(data, Mapping):
        return {str(key): outline_only(value) for key, value in data.items()}
    if is_dataclass_instance(data):
        return {name: outline_only(value) for name, value in dataclass_items(data)}
    if isinstance(data, (list, tuple)):
        return [outline_only(value) for value in data]
    return type(data).__name__


def describe(
    operation: Callable[..., Any], *, arguments: Sequence[Hashable], data: Any, aspects: Sequence[str]
) -> CallReport:
    """Describe the call that is under way, comparing the given aspects of ``data`` (see ``ASPECTS``)."""
    compared = {"arguments": [repr(argument) for argument in arguments]}
    compared |= {aspect: ASPECTS[aspect](data) for aspect in aspects}
    return CallReport(qualified(operation), call_site(), compared, shapes_only(data))


ASPECTS: dict[str, Callable[[Any], Any]] = {
    "structures": outline_only,
    "dtypes": lambda data: [str(tensor.dtype) for tensor in iterate_tensors(data)],
    "devices": lambda data: [tensor.device.type for tensor in iterate_tensors(data)],
    "dimensions": lambda data: [tensor.ndim for tensor in iterate_tensors(data)],
    "shapes": shapes_only,
}
SAME_SHAPES = ("structures", "dtypes", "devices", "shapes")
SAME_DIMENSIONS = ("structures", "dtypes", "devices", "dimensions")


def explain_difference(reports: Sequence[CallReport]) -> str | None:
    """Return the message for the first difference between the ranks' calls, ``None`` if there is none."""
    if len({report.operation for report in reports}) > 1:
        lines = [f"`{report.operation}` on {report.shapes}" for report in reports]
        return _message("the processes called different operations.", "Operations", lines, reports)
    for aspect in reports[0].compared:
        values = [report.compared.get(aspect) for report in reports]
        if all(value == values[0] for value in values):
            continue
        if aspect == "shapes":
            problem, title = (
                "due to shape mismatches. All shapes across devices must be valid.",
                "Input shapes",
            )
        else:
            problem, title = (
                f"due to mismatches of {aspect}. They must be the same on all processes.",
                f"Input {aspect}",
            )
        lines = [str(value) for value in values]
        return _message(problem, f"Operation: `{reports[0].operation}`\n{title}", lines, reports)
    return None


def _message(problem: str, title: str, lines: Sequence[str], reports: Sequence[CallReport]) -> str:
    joint = "" if problem.startswith("due") else ":"
    return (
        f"Cannot apply desired operation{joint} {problem}\n\n{title}:\n{by_process(lines)}\n"
        f"Called from:\n{by_process([report.call_site for report in reports])}"
    )


def by_process(lines: Sequence[str]) -> str:
    """Return one line per rank."""
    return "\n".join(f"  - Process {rank}: {line}" for rank, line in enumerate(lines))


def raise_for_disagreement(
    transport: Transport,
    seen: Exchange,
    *,
    operation: Callable[..., Any],
    arguments: Sequence[Hashable],
    data: Any,
    aspects: Sequence[str] = SAME_SHAPES,
) -> NoReturn:
    """Tell all ranks what each of them called, and raise; every rank that saw the same frames comes here.

    Raises:
        DistributedOperationException: Always.
    """
    own = describe(operation, arguments=arguments, data=data, aspects=aspects)
    strangers = [str(rank) for rank, digest in enumerate(seen.digests) if digest is None]
    if strangers:
        raise DistributedOperationException(
            f"Cannot apply desired operation: process {', '.join(strangers)} sent something that is not "
            "from an "
            f"operation of this library while `{own.operation}` was called from {own.call_site}. Check "
            "that all "
            "processes make the same calls of torch.distributed and of this library in the same order."
        )
    _, answers = exchange_bytes(transport, digest=_REPORT_DIGEST, payload=own.to_json().encode())
    reports = [CallReport.from_json(answer) for answer in answers]
    fallback = _message(
        "the processes called it with different values.",
        "Calls",
        [f"`{report.operation}`, {dict(report.compared)}" for report in reports],
        reports or [own],
    )
    raise DistributedOperationException((explain_difference(reports) if reports else None) or fallback)
