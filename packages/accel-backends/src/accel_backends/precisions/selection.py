"""Finds a precision by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from accel_backends.handlers.autocast import AutocastKwargs
from accel_backends.handlers.fp8 import RECIPE_KINDS
from accel_backends.handlers.grad_scaler import GradScalerKwargs
from accel_backends.precisions.protocol import Precision, PrecisionFactory
from accel_state.kwargs_handler import KwargsHandler
from accel_state.registry import Registry
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:
    from accel_state.devices import DeviceBackend

PRECISIONS: Registry[PrecisionFactory] = Registry("precision", "accel.precisions")
_READ_BY_SOME = (AutocastKwargs, GradScalerKwargs, *RECIPE_KINDS)


def select_precision(
    name: str,
    *,
    device_backend: DeviceBackend,
    handlers: Mapping[type[KwargsHandler], KwargsHandler] | None = None,
) -> Precision:
    """Return the precision called ``name``, set up for one device.

    Args:
        name: A member of the registry `accel.precisions`, such as ``bf16``.
        device_backend: The device that models will compute on.
        handlers: The run's handlers by class; those for autocast, scaling and 8 bits are read here.

    Raises:
        ConfigError: If nobody owns the name, or the device cannot compute in it.
        NotAvailableError: If it needs a library that is not installed.
    """
    given = {} if handlers is None else handlers  # an empty one may be filled later
    precision = PRECISIONS.get(str(name))(device_backend=device_backend, handlers=given)
    for kind in _READ_BY_SOME:
        if kind in given and kind not in precision.reads_handlers:
            warn_user(f"`{kind.__name__}` has no effect with `mixed_precision={precision.name}`.")
    return precision
