"""Collectives for whatever can be pickled. Objects come from ranks of the same job, never from outside."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from accel_ops.broadcasting import check_source
from accel_ops.debug import verify_call
from accel_ops.faults import raise_for_disagreement
from accel_ops.frames import exchange, exchange_bytes
from accel_ops.parcel import digest_of
from accel_ops.transport import current_transport

_GATHER_DIGEST = digest_of("gather_object")


@verify_call(aspects=())
def gather_object(object: Any) -> Any:  # noqa: A002 - the name that users know
    """Return the objects of all ranks in one list, in rank order, on every rank.

    Every rank must call it; it blocks until all have. Lists and tuples are joined (each rank gives a list of
    items, the result is the list of all items); any other object counts as one item.

    Args:
        object: Anything that can be pickled; it may differ in size and type between the ranks.

    Raises:
        DistributedOperationException: On every rank, if another rank called another operation.
    """
    transport = current_transport()
    if transport.world_size == 1:
        return object if isinstance(object, list) else _items(object)
    payload = pickle.dumps(object, protocol=pickle.HIGHEST_PROTOCOL)
    seen, payloads = exchange_bytes(transport, digest=_GATHER_DIGEST, payload=payload)
    if not payloads:
        raise_for_disagreement(transport, seen, operation=gather_object, arguments=(), data=None, aspects=())
    return [item for payload in payloads for item in _items(_unpickle(payload))]


def _unpickle(payload: bytes) -> Any:
    return pickle.loads(payload)  # noqa: S301 - written by a rank of this job


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@verify_call(aspects=())
def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Replace the objects in the list by those of rank ``from_process``, and return the list.

    Every rank must call it, with a list of the same length; it blocks until all have.

    Args:
        object_list: Objects that can be pickled; changed in place, except on the source.
        from_process: The source.

    Raises:
        ConfigError: If there is no such rank.
        DistributedOperationException: On every rank, if the lengths or the calls differ.
    """
    transport = current_transport()
    check_source(from_process, transport.world_size)
    if transport.world_size == 1:
        return object_list
    is_source = transport.rank == from_process
    payload = pickle.dumps(list(object_list), protocol=pickle.HIGHEST_PROTOCOL) if is_source else b""
    arguments = (from_process, len(object_list))
    digest = digest_of(("broadcast_object_list", *arguments))
    seen = exchange(
        transport,
        digest=digest,
        payload_bytes=len(payload),
        write=lambda frames: frames.put(payload),
    )
    if not seen.agrees:
        raise_for_disagreement(
            transport, seen, operation=broadcast_object_list, arguments=arguments, data=None, aspects=()
        )
    if seen.rides:
        received = seen.frames.payload_of(from_process, seen.payload_bytes[from_process])
    else:
        sent = torch.empty(max(seen.payload_bytes), dtype=torch.uint8)
        sent.numpy().data[: len(payload)] = payload
        sent = transport.broadcast(sent.to(transport.control_device), source=from_process)
        received = sent.cpu().numpy().tobytes()
    if not is_source:
        object_list[:] = _unpickle(received)
    return object_list
