"""The way of every collective: agree on it, send the small leaves together and the large ones alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Protocol

import torch

from accel_ops.faults import raise_for_disagreement
from accel_ops.frames import HEADER_BYTES, FrameTable, exchange
from accel_ops.parcel import (
    Layout,
    Segment,
    flatten,
    layout_of,
    pack,
    pack_segment,
    rebuild,
    rooms_in,
    segment_view,
    spread,
)
from accel_ops.transport import Transport


class Collective(Protocol):
    """What an operation does with tensors that are ready to travel."""

    @property
    def user(self) -> Callable[..., Any]:
        """The public function, for messages."""
        ...

    @property
    def arguments(self) -> tuple[Hashable, ...]:
        """Plain values that must be equal on all ranks."""
        ...

    def shape(self, leaf: torch.Tensor) -> Sequence[int]:
        """Return the shape of the result for a leaf."""
        ...

    def has_payload(self, transport: Transport) -> bool:
        """Tell whether this rank's values are of interest to the others."""
        ...

    def has_result(self, transport: Transport) -> bool:
        """Tell whether this rank receives anything; otherwise its own data comes back."""
        ...

    def from_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the result from the values of all ranks, ``(world_size, n)``: ``(..., n)``.

        It is in memory of its own, or the rows themselves.
        """
        ...

    def send_packed(self, transport: Transport, layout: Layout, leaves: Sequence[torch.Tensor]) -> Arrivals:
        """Send the leaves that are not large; return the result of each segment, ``(..., n)``."""
        ...

    def send_alone(self, transport: Transport, leaf: torch.Tensor) -> torch.Tensor:
        """Send one leaf and return its result, in any shape of the right number of elements."""
        ...


Arrivals = list[tuple[Segment, torch.Tensor]]

_HOST = frozenset({torch.device("cpu")})


def fly(transport: Transport, collective: Collective, data: Any) -> Any:
    """Run a collective over nested data on every rank and return the results in the same structure.

    Raises:
        TypeError: If a leaf is no dense tensor.
        DistributedOperationException: If the ranks differ in operation, structure, dtypes or shapes; on
            every rank.
    """
    leaves, outline = flatten(data, user=collective.user)
    devices = _devices_of(leaves)
    with torch.no_grad():
        if len(devices) == 1 and transport.home(next(iter(devices))) in devices:
            results = _fly_from(transport, collective, next(iter(devices)), outline, leaves, data)
        else:
            results = _fly_by_home(transport, collective, outline, leaves, data)
    return rebuild(data, iter(results)) if collective.has_result(transport) else data


def _devices_of(leaves: Sequence[torch.Tensor]) -> AbstractSet[torch.device]:
    if False not in [leaf.is_cpu for leaf in leaves]:  # the common case, without an object per leaf
        return _HOST
    return {leaf.device for leaf in leaves}


def _fly_by_home(
    transport: Transport, collective: Collective, outline: Hashable, leaves: Sequence[torch.Tensor], data: Any
) -> list[torch.Tensor]:
    """Run a collective over leaves of several devices, or of one not served; the results come back there."""
    groups: dict[torch.device, list[int]] = {}
    for position, leaf in enumerate(leaves):
        groups.setdefault(transport.home(leaf.device), []).append(position)
    results = list(leaves)
    for home, positions in sorted(groups.items(), key=lambda group: group[0].type):
        moved = [leaves[position].to(home) for position in positions]
        arrived = _fly_from(transport, collective, home, outline, moved, data)
        for position, result in zip(positions, arrived, strict=True):
            results[position] = result.to(leaves[position].device)
    return results


def _fly_from(
    transport: Transport,
    collective: Collective,
    home: torch.device,
    outline: Hashable,
    leaves: Sequence[torch.Tensor],
    data: Any,
) -> list[torch.Tensor]:
    """Run a collective over leaves that are all on the device ``home``."""
    operation = (collective.user.__name__, transport.world_size, *collective.arguments)
    layout = layout_of(operation, outline, leaves, result_shape=collective.shape)
    results = list(leaves)
    arrivals: Arrivals | None = None
    if transport.is_framed(home):
        arrivals = _agree(transport, collective, layout, leaves, data)
    if arrivals is None:
        arrivals = collective.send_packed(transport, layout, leaves) if layout.segments else []
        for position in layout.large:
            results[position] = collective.send_alone(transport, leaves[position]).reshape(
                layout.shapes[position]
            )
    if not collective.has_result(transport):
        return results
    for segment, values in arrivals:
        spread(layout, segment, values, leaves=leaves, results=results)
    return results


def _agree(
    transport: Transport, collective: Collective, layout: Layout, leaves: Sequence[torch.Tensor], data: Any
) -> Arrivals | None:
    """Compare notes with all ranks; return the results if everything rode along in the frames."""

    def write(frames: FrameTable) -> None:
        pack(layout, leaves, frames.view(layout.digest, partial(_Windows, layout)).rooms)

    write_own = write if collective.has_payload(transport) else None
    seen = exchange(transport, digest=layout.digest, payload_bytes=layout.total_bytes, write=write_own)
    if not seen.agrees:
        raise_for_disagreement(
            transport, seen, operation=collective.user, arguments=collective.arguments, data=data
        )
    if not seen.rides:
        return None
    if not collective.has_result(transport):
        return []
    rows = seen.frames.view(layout.digest, partial(_Windows, layout)).rows
    return [
        (segment, collective.from_rows(values)) for segment, values in zip(layout.segments, rows, strict=True)
    ]


class _Windows:
    """Where the segments of a layout lie in the frames."""

    def __init__(self, layout: Layout, frames: FrameTable) -> None:
        #: In this rank's frame.
        self.rooms = rooms_in(layout, frames.own[HEADER_BYTES:])
        #: In all: ``(world_size, n)``, in the dtype of the segment.
        self.rows = [segment_view(segment, frames.payloads) for segment in layout.segments]


def carry(
    transport: Transport,
    layout: Layout,
    leaves: Sequence[torch.Tensor],
    send: Callable[[torch.Tensor], torch.Tensor],
) -> Arrivals:
    """Send the leaves of all segments, in one buffer if the transport can, and return what arrived."""
    device = leaves[0].device
    if transport.packs_bytes:
        buffer = torch.empty(layout.packed_bytes, dtype=torch.uint8, device=device)
        pack(layout, leaves, rooms_in(layout, buffer))
        arrived = send(buffer)
        return [(segment, segment_view(segment, arrived)) for segment in layout.segments]
    return [(segment, send(pack_segment(segment, leaves))) for segment in layout.segments]


def send_leaf(
    transport: Transport, flat: torch.Tensor, send: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Send one flat leaf; as bytes where the transport can, since not every backend knows every dtype."""
    if not transport.packs_bytes:
        return send(flat)
    return send(flat.view(torch.uint8)).view(flat.dtype)


def flat_leaf(leaf: torch.Tensor) -> torch.Tensor:
    """Return the values of a leaf in one contiguous dimension, uncopied where they already are."""
    return leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
