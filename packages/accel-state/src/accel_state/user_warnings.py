"""Warnings that show the user's line, once per run."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from accel_state.environment import snapshot
from accel_state.errors import ConfigError
from accel_state.launched_by import detect_topology

_ROOMS = ("backends", "bigmodel", "checkpoint", "data", "launch", "ops", "state", "trackers")
OWN_PACKAGES = frozenset({"accel", *(f"accel_{name}" for name in _ROOMS)})
_SKIPPED_PACKAGES = OWN_PACKAGES | {"contextlib", "functools", "torch"}


def warn_user(message: str, category: type[Warning] = UserWarning, *, main_process_only: bool = True) -> None:
    """Warn at the user's line: the innermost one outside of accel and torch.

    Args:
        message: The setting without effect or the surprise, and the action.
        category: The class of the warning.
        main_process_only: Leave out the warning on all ranks but the first, since it is the same on each. False
            if only some ranks may have a reason to warn.
    """
    if main_process_only and not is_main_process():
        return
    frame = user_frame()
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__") or "<string>",  # with None, Python drops the warning
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def user_frame() -> FrameType:
    """Return the innermost frame outside of accel and torch; in one of their threads, the outermost frame."""
    frame = sys._getframe(1)  # `inspect.stack` would read the source of every frame
    while frame.f_back is not None and _package(frame) in _SKIPPED_PACKAGES:
        frame = frame.f_back
    return frame


def call_site() -> str:
    """Return file, line and function of the innermost frame outside these packages and torch."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def is_main_process() -> bool:
    """Whether this is rank 0, or no rank of a run; builds no state."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    try:
        return detect_topology(snapshot()).rank == 0
    except ConfigError:
        return True  # `PartialState` raises it
