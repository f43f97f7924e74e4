"""Accelerate itself, beside which nothing can stand in for it. Imports little: it may run at every start of Python."""

from __future__ import annotations

from importlib.machinery import PathFinder

from accel_state.errors import StateError


def refuse_accelerate() -> None:
    """Refuse an environment that has Accelerate itself.

    Raises:
        StateError: Saying where it is, and what to do.
    """
    spec = PathFinder.find_spec("accelerate")
    if spec is not None and spec.origin is not None:
        raise StateError(
            f"Accelerate itself is installed (`{spec.origin}`), and `accel.drop_in` would stand in for it. Uninstall "
            "it (`pip uninstall accelerate`), or leave the drop-in out (`accel drop-in remove`, no `--drop_in`)."
        )
