"""Give all ranks the random state of rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from accel_ops.collectives.broadcasting import broadcast
from accel_ops.transport import current_transport
from accel_state.devices import require_device_backend
from accel_state.enums import RNGType
from accel_state.errors import ConfigError

_Access = tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], object]]


def synchronize_rng_state(
    rng_type: RNGType | str | None = None, generator: torch.Generator | None = None
) -> None:
    """Give a random number generator of every rank its state on rank 0; blocks until all have called.

    Args:
        rng_type: ``torch`` (the CPU's), a kind of device (the current device of that kind), or
            ``generator``. By default ``generator`` if one is given, else ``torch``.
        generator: The generator to set, for ``generator``.

    Raises:
        ConfigError: If the type is unknown, or is ``generator`` without one.
        NotAvailableError: If there is no such device here.
    """
    synchronize_rng_states(
        [rng_type or (RNGType.GENERATOR if generator is not None else RNGType.TORCH)], generator
    )


def synchronize_rng_states(
    rng_types: Sequence[str | RNGType], generator: torch.Generator | None = None
) -> None:
    """Do what :func:`synchronize_rng_state` does for several generators, in one message."""
    accesses = [_access(_known(rng_type), generator) for rng_type in rng_types]
    if current_transport().world_size == 1 or not accesses:
        return
    states = broadcast([read() for read, _ in accesses])
    if current_transport().rank == 0:
        return
    for (_, write), state in zip(accesses, states, strict=True):
        write(state.clone())


def _known(rng_type: str | RNGType) -> RNGType:
    try:
        return RNGType(rng_type)
    except ValueError as error:
        names = ", ".join(kind.value for kind in RNGType)
        raise ConfigError(f"`rng_type` must be one of {names}, got `{rng_type}`.") from error


def _access(rng_type: RNGType, generator: torch.Generator | None) -> _Access:
    """Return how to read and how to write the state of a generator."""
    if rng_type is RNGType.TORCH:
        return torch.get_rng_state, torch.set_rng_state
    if rng_type is RNGType.GENERATOR:
        if generator is None:
            raise ConfigError(
                "`generator` is needed to synchronise the random state of a generator, got None."
            )
        return generator.get_state, generator.set_state
    rng = require_device_backend(rng_type.value).rng
    return rng.get_state, rng.set_state
