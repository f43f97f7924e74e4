"""Finds a precision by its name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accel_backends.handlers.autocast import AutocastKwargs
from accel_backends.handlers.grad_scaler import GradScalerKwargs
from accel_backends.precisions.protocol import Precision, PrecisionFactory
from accel_state.errors import NotAvailableError
from accel_state.kwargs_handler import KwargsHandler
from accel_state.registry import Registry

if TYPE_CHECKING:
    from accel_state.devices import DeviceBackend

PRECISIONS: Registry[PrecisionFactory] = Registry("precision", "accel.precisions")
# Names that settings know already, but that no part of this version computes in.
_NOT_YET = frozenset({"fp8"})


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
        handlers: The run's handlers by class; those for autocast and scaling are read here.

    Raises:
        ConfigError: If nobody owns the name, or the device cannot compute in it.
        NotAvailableError: If it is a precision that this version is still without.
    """
    given = handlers or {}
    if name in _NOT_YET and name not in PRECISIONS:
        known = ", ".join(f"`{known}`" for known in PRECISIONS.names())
        raise NotAvailableError(f"`mixed_precision={name}` is not part of this version. Use one of: {known}.")
    precision = PRECISIONS.get(str(name))(device_backend=device_backend, handlers=given)
    for kind in (AutocastKwargs, GradScalerKwargs):
        if kind in given and kind not in precision.reads_handlers:
            warnings.warn(
                f"`{kind.__name__}` has no effect with `mixed_precision={precision.name}`.", stacklevel=2
            )
    return precision
