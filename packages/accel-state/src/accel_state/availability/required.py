"""Decorators that refuse a call when what it needs is not installed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from accel_state.availability.packages import WHY_NOT
from accel_state.errors import NotAvailableError

P = ParamSpec("P")
R = TypeVar("R")


def deepspeed_required(func: Callable[P, R]) -> Callable[P, R]:
    """Make calls of ``func`` a `NotAvailableError` where DeepSpeed is not installed."""
    return _required("deepspeed", func)


def torchao_required(func: Callable[P, R]) -> Callable[P, R]:
    """Make calls of ``func`` a `NotAvailableError` where torchao is not installed or too old."""
    return _required("torchao", func)


def _required(name: str, func: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(func)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        reason = WHY_NOT[name]()
        if reason is not None:
            raise NotAvailableError(f"`{func.__qualname__}` needs `{name}`. {reason}")
        return func(*args, **kwargs)

    return checked
