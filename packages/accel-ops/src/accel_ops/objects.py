"""Collectives for everything that can be pickled, and for tensors whose shape only one rank knows.

Objects come from ranks of the same job, never from outside.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from accel_ops.agreement import Call, agree, exchange, to_tensor
from accel_ops.collectives import broadcast, check_source
from accel_ops.nested.describe import (
    TENSOR_TYPE_TO_INT,
    find_device,
    get_data_structure,
    initialize_tensors,
)
from accel_ops.nested.move import send_to_device
from accel_ops.transport import Transport, current_transport
from accel_state.errors import ConfigError, DistributedOperationException
from accel_state.runtime import current_runtime, has_runtime

#: Sent instead by a rank that could not pickle its object, so that no rank waits. No pickle is empty.
_NOT_PICKLED = b""


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
            pickle its object (on that rank the error of pickle).
    """
    transport = current_transport()
    if transport.world_size == 1:
        return object if isinstance(object, (list, torch.Tensor)) else items_of(object)
    gathered = gather_each(transport, Call(gather_object), object)
    return [item for each in gathered for item in items_of(each)]


def gather_each(transport: Transport, call: Call, value: Any) -> list[Any]:
    """Return the values of all ranks in rank order, as part of the operation that ``call`` names.

    Every rank must call it; it blocks until all have.

    Raises:
        DistributedOperationException: As :func:`gather_object`.
    """
    with transport.lock:
        payloads = exchange(transport, call, _pickled(transport, call, value))
    failed = [str(rank) for rank, payload in enumerate(payloads) if payload == _NOT_PICKLED]
    if failed:
        raise _pickling_failed(call, ", ".join(failed))
    return [_unpickled(payload) for payload in payloads]


def items_of(value: Any) -> list[Any]:
    """Return the items that `gather_object` makes of a value."""
    has_items = isinstance(value, (list, tuple)) or (isinstance(value, torch.Tensor) and value.ndim > 0)
    return list(value) if has_items else [value]


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Replace the objects in the list by the objects of rank ``from_process``, and return the list.

    Every rank must call it, with a list of the same length; it blocks until all have.

    Args:
        object_list: Objects that can be pickled; changed in place, except on the source.
        from_process: The source.

    Raises:
        ConfigError: If there is no such rank.
        StateError: If there are several processes but no process group.
        DistributedOperationException: On every rank, if the lengths or the calls differ, or the source could
            not pickle its objects (there the error of pickle).
    """
    transport = current_transport()
    check_source(from_process, transport.world_size)
    if transport.world_size == 1:
        return object_list
    call = Call(broadcast_object_list, (from_process, len(object_list)))
    received = broadcast_from(transport, call, list(object_list), source=from_process)
    if transport.rank != from_process:
        object_list[:] = received
    return object_list


def broadcast_from(transport: Transport, call: Call, value: Any, *, source: int) -> Any:
    """Return the value of rank ``source``, as part of the operation that ``call`` names.

    Every rank must call it; it blocks until all have.

    Raises:
        DistributedOperationException: As :func:`broadcast_object_list`.
    """
    is_source = transport.rank == source
    with transport.lock:
        sent = _pickled(transport, call, value) if is_source else b""
        payloads = agree(transport, call, sent)
        payload = payloads.of(source)
        if payload is None:
            buffer = to_tensor(sent, size=payloads.sizes[source])
            (received,) = transport.broadcast([buffer.to(transport.device_for(buffer.device))], source=source)
            payload = received.cpu().numpy().tobytes()
    if payload == _NOT_PICKLED:
        raise _pickling_failed(call, str(source))
    return value if is_source else _unpickled(payload)


def copy_tensor_to_devices(tensor: Any = None) -> Any:
    """Return, on every rank, the nested tensors that exactly one rank passes.

    Every rank must call it; it blocks until all have. Unlike :func:`broadcast`, the other ranks need to know
    neither the source nor the shapes: they pass ``None``, and receive on their local device of the source's device
    type.

    Raises:
        ConfigError: On every rank, if not exactly one of them passes tensors.
        StateError: If there are several processes but no process group.
    """
    transport = current_transport()
    if transport.world_size == 1:
        return tensor
    device = find_device(tensor)
    header = None if tensor is None else (get_data_structure(tensor), None if device is None else device.type)
    structures = gather_each(transport, Call(copy_tensor_to_devices), header)
    sources = [rank for rank, structure in enumerate(structures) if structure is not None]
    if len(sources) != 1:
        having = ", ".join(str(rank) for rank in sources) or "none"
        raise ConfigError(
            f"`tensor` must be given on exactly one process and be None elsewhere. It is given on: {having}."
        )
    (source,) = sources
    if transport.rank != source:
        structure, device_type = structures[source]
        tensor = initialize_tensors(structure)
        if device_type not in (None, "cpu"):
            tensor = send_to_device(tensor, _local_device(device_type))
    return broadcast(tensor, from_process=source)


def gather_tensor_shape(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return, on every rank, the shape of a tensor that exactly one rank passes, followed by its dtype as a number.

    The result is a one-dimensional int64 tensor on the CPU. Every rank must call it, the other ranks
    with ``None``; it blocks until all have.

    Raises:
        ConfigError: On every rank, if not exactly one of them passes a tensor, or if its dtype has no
            number.
        StateError: If there are several processes but no process group.
    """
    transport = current_transport()
    header = None if tensor is None else [*tensor.shape, TENSOR_TYPE_TO_INT.get(tensor.dtype, 0)]
    call = Call(gather_tensor_shape)
    headers = [header] if transport.world_size == 1 else gather_each(transport, call, header)
    shapes = [shape for shape in headers if shape is not None]
    if len(shapes) != 1 or shapes[0][-1] == 0:
        raise ConfigError(
            "`tensor` must be given on exactly one process, in one of the dtypes of `TENSOR_TYPE_TO_INT`, "
            f"got {shapes}."
        )
    return torch.tensor(shapes[0], dtype=torch.int64, device="cpu")


def _pickled(transport: Transport, call: Call, value: Any) -> bytes:
    """Pickle the value, or raise on all ranks."""
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except BaseException:
        # The object's methods may raise anything, Ctrl-C included, and the other ranks wait for this one.
        agree(transport, call, _NOT_PICKLED)
        raise


def _unpickled(payload: bytes) -> Any:
    return pickle.loads(payload)  # noqa: S301 - written by a rank of this job


def _pickling_failed(call: Call, ranks: str) -> DistributedOperationException:
    return DistributedOperationException(
        f"Process {ranks} could not pickle its object for `{call.operation.__name__}`. See its error."
    )


def _local_device(device_type: str) -> torch.device:
    """Return this process's device of a type."""
    if has_runtime() and current_runtime().device.type == device_type:
        return current_runtime().device
    return torch.device(device_type)
