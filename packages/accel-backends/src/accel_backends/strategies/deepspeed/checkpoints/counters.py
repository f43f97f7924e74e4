"""How far an engine has come: its counters, and the scale of its losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_ENGINE = ("global_steps", "global_samples", "skipped_steps")
_OF_OPTIMIZER = ("dynamic_loss_scale", "overflow")


def counters_in(model: Mapping[str, Any], optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counters in what an engine has saved.

    Args:
        model: What it saved beside the weights.
        optimizer: What it saved of its optimizer; empty if there is nothing.
    """
    found = {name: model[name] for name in _OF_ENGINE if name in model}
    found |= {name: optimizer[name] for name in _OF_OPTIMIZER if name in optimizer}
    if "loss_scaler" in optimizer:
        found["loss_scaler"] = vars(optimizer["loss_scaler"])
    return found


def restore_counters(engine: Any, counters: Mapping[str, Any]) -> None:
    """Set the counters of an engine; what one of another stage or precision does not have is left out."""
    for name in _OF_ENGINE:
        if name in counters:
            setattr(engine, name, counters[name])
    for name in _OF_OPTIMIZER:
        if name in counters and hasattr(engine.optimizer, name):
            setattr(engine.optimizer, name, counters[name])
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if scaler is not None and vars(scaler).keys() == counters.get("loss_scaler", {}).keys():
        vars(scaler).update(counters["loss_scaler"])
