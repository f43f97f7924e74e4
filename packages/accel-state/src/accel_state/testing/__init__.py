"""Tools for testing distributed code: live worlds of processes, leak checks, real scripts.

`accel_state.testing.fixtures` is a pytest plugin: ``pytest -p accel_state.testing.fixtures``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_state.testing.scripts import run_script as run_script
    from accel_state.testing.world import World as World
    from accel_state.testing.world import WorldError as WorldError

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "World": "accel_state.testing.world",
        "WorldError": "accel_state.testing.world",
        "run_script": "accel_state.testing.scripts",
    },
)
