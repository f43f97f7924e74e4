"""Transformer Engine itself, imported when it is needed: that takes seconds, and a GPU."""

from __future__ import annotations

import importlib
from typing import Any

from accel_state.availability import why_not
from accel_state.errors import NotAvailableError


def transformer_engine() -> Any:
    """Return the module `transformer_engine.pytorch`.

    Raises:
        NotAvailableError: If it is not installed, cannot be imported, or is too old.
    """
    reason = why_not("transformer_engine")
    if reason is not None:
        raise NotAvailableError(f"8-bit training with Transformer Engine needs it. {reason}")
    try:
        te = importlib.import_module("transformer_engine.pytorch")
    except (ImportError, OSError) as error:
        raise NotAvailableError(
            f"Transformer Engine is installed, but cannot be imported: {error}. It needs the CUDA libraries, and a "
            "build for this torch."
        ) from error
    if not hasattr(te, "autocast"):
        raise NotAvailableError(
            "This Transformer Engine has no `autocast`, which came with version 2.9. Run `pip install -U "
            "'transformer_engine[pytorch]'`."
        )
    return te


def recipes() -> Any:
    """Return the module with the recipes of Transformer Engine."""
    return importlib.import_module("transformer_engine.common.recipe")
