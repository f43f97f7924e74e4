"""Which launcher started this process, and with which rank: one pure reader of variables per launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_state.process_environments.detection import PROCESS_ENVIRONMENTS as PROCESS_ENVIRONMENTS
    from accel_state.process_environments.detection import detect_topology as detect_topology
    from accel_state.process_environments.detection import process_environment as process_environment
    from accel_state.process_environments.protocol import ProcessEnvironment as ProcessEnvironment

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "PROCESS_ENVIRONMENTS": f"{__name__}.detection",
        "ProcessEnvironment": f"{__name__}.protocol",
        "detect_topology": f"{__name__}.detection",
        "process_environment": f"{__name__}.detection",
    },
)
