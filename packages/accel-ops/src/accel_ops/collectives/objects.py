"""Collectives for whatever can be pickled. Objects come from ranks of the same job, never from outside."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from accel_ops.agreement.calls import Call
from accel_ops.agreement.exchange import Replies, agree, gather_bytes, room_for_attached, to_tensor
from accel_ops.collectives.broadcasting import check_source
from accel_ops.transport import Transport, current_transport
from accel_state.errors import DistributedOperationException

#: Sent instead of a size by a rank that has nothing to send because it could not pickle its object.
_NOT_PICKLED = -1


def gather_object(object: Any) -> Any:  # noqa: A002 - the name that users know
    """Return the objects of all ranks in one list, in rank order, on every rank.

    Every rank must call it; it blocks until all have. Lists and tuples are joined (each rank gives a list of
    items, the result is the list of all items), and so are the rows of tensors, on several processes; any other object
    counts as one item.

    Args:
        object: Anything that can be pickled; it may differ in size and type between the ranks.

    Raises:
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if another rank called another operation, or could not
            pickle its object (on that rank pickle's own error).
    """
    transport = current_transport()
    if transport.world_size == 1:
        return object if isinstance(object, (list, torch.Tensor)) else items_of(object)
    gathered = gather_each(transport, Call(gather_object), object)
    return [item for each in gathered for item in items_of(each)]


def gather_each(transport: Transport, call: Call, value: Any) -> list[Any]:
    """Return the values of all ranks in rank order, as part of the operation that ``call`` names.

    Raises:
        DistributedOperationException: As :func:`gather_object`.
    """
    with transport.lock:
        payload = _pickled(transport, call, value)
        replies = _exchange(transport, call, payload)
        if max(replies.numbers) > room_for_attached(transport):
            payloads = gather_bytes(transport, payload, replies.numbers)
        else:
            payloads = [_attached(replies, rank) for rank in range(transport.world_size)]
    return [_unpickle(payload) for payload in payloads]


def _pickled(transport: Transport, call: Call, value: Any) -> bytes:
    """Pickle the value, or raise on all ranks."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except BaseException:
        # Whatever the object's own methods raise: the other ranks wait for this one.
        agree(transport, call, number=_NOT_PICKLED)
        raise


def _exchange(transport: Transport, call: Call, payload: bytes) -> Replies:
    """Exchange the sizes of the payloads, and those that are small enough to be attached."""
    room = room_for_attached(transport)
    attached = to_tensor(payload, size=len(payload)) if len(payload) <= room else None
    replies = agree(transport, call, number=len(payload), attached=attached)
    failed = [str(rank) for rank, size in enumerate(replies.numbers) if size == _NOT_PICKLED]
    if failed:
        raise DistributedOperationException(
            f"Process {', '.join(failed)} could not pickle its object for `{call.operation.__name__}`. "
            "See its error."
        )
    return replies


def _attached(replies: Replies, rank: int) -> bytes:
    return replies.attached[rank, : replies.numbers[rank]].numpy().tobytes()


def _unpickle(payload: bytes) -> Any:
    return pickle.loads(payload)  # noqa: S301 - written by a rank of this job


def items_of(value: Any) -> list[Any]:
    """Return the items that `gather_object` makes of a value."""
    has_items = isinstance(value, (list, tuple)) or (isinstance(value, torch.Tensor) and value.ndim > 0)
    return list(value) if has_items else [value]


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
        payload = _pickled(transport, call, list(object_list)) if is_source else b""
        replies = _exchange(transport, call, payload)
        size = replies.numbers[from_process]
        if size > room_for_attached(transport):
            buffer = to_tensor(payload, size=size).to(transport.device_for(torch.device("cpu")))
            (received,) = transport.broadcast([buffer], source=from_process)
            payload = received.cpu().numpy().tobytes()
        else:
            payload = _attached(replies, from_process)
    if not is_source:
        object_list[:] = _unpickle(payload)
    return object_list
