"""The autocast context of the current state, for code that has no `Accelerator` at hand."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from accel_backends.handlers.autocast import AutocastKwargs
from accel_backends.precisions.precision import select_precision


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> AbstractContextManager[Any]:
    """Return a context in which operations are cast as the current `AcceleratorState` says.

    Args:
        native_amp: Whether operations are cast at all.
        autocast_kwargs: How they are cast.
    """
    if not native_amp:
        return nullcontext()
    from accel_state import AcceleratorState
    from accel_state.runtime import current_runtime

    precision = select_precision(
        AcceleratorState().mixed_precision, device_backend=current_runtime().device_backend
    )
    return precision.autocast(autocast_kwargs)
