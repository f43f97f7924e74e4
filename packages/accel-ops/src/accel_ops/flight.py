"""The way of every collective: agree on it, send the small leaves together and the large ones alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch

from accel_ops.faults import raise_for_disagreement
from accel_ops.frames import exchange
from accel_ops.parcel import (
    Layout,
    Segment,
    flatten,
    layout_of,
    pack,
    pack_segment,
    rebuild,
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

    def from_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the result from the values of all ranks, ``(world_size, n)``: ``(..., n)``."""
        ...

    def send_packed(self, transport: Transport, layout: Layout, leaves: Sequence[torch.Tensor]) -> Arrivals:
        """Send the leaves that are not large; return the result of each segment, ``(..., n)``."""
        ...

    def send_alone(self, transport: Transport, leaf: torch.Tensor) -> torch.Tensor:
        """Send one leaf and return its result, in any shape of the right number of elements."""
        ...


Arrivals = list[tuple[Segment, torch.Tensor]]


def fly(transport: Transport, collective: Collective, data: Any) -> Any:
    """Run a collective over nested data on every rank and return the results in the same structure.

    Raises:
        TypeError: If a leaf is no dense tensor.
        DistributedOperationException: If the ranks differ in operation, structure, dtypes or shapes; on
            every rank.
    """
    leaves, outline = flatten(data, user=collective.user)
    devices = {leaf.device for leaf in leaves} or {transport.control_device}
    with torch.no_grad():
        if len(devices) == 1 and transport.home(next(iter(devices))) in devices:
            results = _fly_from(transport, collective, next(iter(devices)), outline, leaves, data)
        else:
            results = _fly_by_home(transport, collective, outline, leaves, data)
    return rebuild(data, iter(results))


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
    for segment, values in arrivals:
        spread(layout, segment, values, leaves=leaves, results=results)
    return results


def _agree(
    transport: Transport, collective: Collective, layout: Layout, leaves: Sequence[torch.Tensor], data: Any
) -> Arrivals | None:
    """Compare notes with all ranks; return the results if everything rode along in the frames."""
    write = (lambda buffer: pack(layout, leaves, buffer)) if collective.has_payload(transport) else None
    seen = exchange(transport, digest=layout.digest, payload_bytes=layout.total_bytes, write=write)
    if not seen.agrees:
        raise_for_disagreement(
            transport, seen, operation=collective.user, arguments=collective.arguments, data=data
        )
    if not seen.rides:
        return None
    return [
        (segment, collective.from_rows(segment_view(segment, seen.payloads))) for segment in layout.segments
    ]


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
        pack(layout, leaves, buffer)
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
