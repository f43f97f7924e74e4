"""Debug mode: a forward pass that runs other units than on the other ranks is an error that names them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from accel_state import current_runtime

_END = "the end of the forward pass"


def check_unit_order(model: nn.Module, units: Mapping[str, nn.Module], *, kind: str) -> None:
    """In debug mode let each unit, before it is gathered, compare with the other ranks that they run it too.

    Otherwise torch waits for ever, or takes the parameters of one unit for those of another of the same size.

    Args:
        model: The model, which every rank calls.
        units: Its units by name; the root may be one.
        kind: What the user's model is called in messages.
    """
    if not current_runtime().debug:
        return
    for name, module in units.items():
        called = f"{name} of {kind}" if name else kind
        module.register_forward_pre_hook(partial(_compare, called), prepend=True)
    model.register_forward_hook(partial(_compare, f"{_END} of {kind}"))


def _compare(unit: str, *_: Any) -> None:
    current_runtime().await_arrival(f"forward of {unit}")
