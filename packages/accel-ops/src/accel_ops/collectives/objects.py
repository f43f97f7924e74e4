"""Collectives for whatever can be pickled. Objects come from ranks of the same job, never from outside."""

from __future__ import annotations

import pickle
from typing import Any

from accel_ops.agreement.calls import Call
from accel_ops.agreement.exchange import agree, gather_bytes, to_tensor
from accel_ops.collectives.broadcasting import check_source
from accel_ops.transport import Transport, current_transport
from accel_state.errors import DistributedOperationException

#: Sent instead of a size by a rank that has nothing to send because it could not pickle its object.
_NOT_PICKLED = -1


def gather_object(object: Any) -> Any:  # noqa: A002 - the name that users know
    """Return the objects of all ranks in one list, in rank order, on every rank.

    Every rank must call it; it blocks until all have. Lists and tuples are joined (each rank gives a list of
    items, the result is the list of all items); any other object counts as one item.

    Args:
        object: Anything that can be pickled; it may differ in size and type between the ranks.

    Raises:
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if another rank called another operation, or could not
            pickle its object (on that rank pickle's own error).
    """
    transport = current_transport()
    if transport.world_size == 1:
        return object if isinstance(object, list) else _items(object)
    gathered = gather_each(transport, Call(gather_object), object)
    return [item for each in gathered for item in _items(each)]


def gather_each(transport: Transport, call: Call, value: Any) -> list[Any]:
    """Return the values of all ranks in rank order, as part of the operation that ``call`` names.

    Raises:
        DistributedOperationException: As :func:`gather_object`.
    """
    with transport.lock:
        payload, sizes = _exchange_sizes(transport, call, value)
        payloads = gather_bytes(transport, payload, sizes)
    return [_unpickle(payload) for payload in payloads]


def _exchange_sizes(
    transport: Transport, call: Call, value: Any, *, has_payload: bool = True
) -> tuple[bytes, list[int]]:
    """Pickle the value and return it with the sizes of all ranks, or raise on all if one cannot be pickled."""
    try:
        payload = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL) if has_payload else b""
    except BaseException:
        # Whatever the object's own methods raise: the other ranks wait for this one.
        agree(transport, call, number=_NOT_PICKLED)
        raise
    sizes = agree(transport, call, number=len(payload))
    failed = [str(rank) for rank, size in enumerate(sizes) if size == _NOT_PICKLED]
    if failed:
        raise DistributedOperationException(
            f"Process {', '.join(failed)} could not pickle its object for `{call.operation.__name__}`. "
            "See its error."
        )
    return payload, sizes


def _unpickle(payload: bytes) -> Any:
    return pickle.loads(payload)  # noqa: S301 - written by a rank of this job


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Replace the objects in the list by those of rank ``from_process``, and return the list.

    Every rank must call it, with a list of the same length; it blocks until all have.

    Args:
        object_list: Objects that can be pickled; changed in place, except on the source.
        from_process: The source.

    Raises:
        ConfigError: If there is no such rank.
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if the lengths or the calls differ, or the source could
            not pickle its objects (there pickle's own error).
    """
    transport = current_transport()
    check_source(from_process, transport.world_size)
    if transport.world_size == 1:
        return object_list
    is_source = transport.rank == from_process
    with transport.lock:
        call = Call(broadcast_object_list, (from_process, len(object_list)))
        payload, sizes = _exchange_sizes(transport, call, list(object_list), has_payload=is_source)
        buffer = to_tensor(transport, payload, size=sizes[from_process])
        (received,) = transport.broadcast([buffer], source=from_process)
    if not is_source:
        object_list[:] = _unpickle(received.cpu().numpy().tobytes())
    return object_list
