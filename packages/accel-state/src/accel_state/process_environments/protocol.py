"""The protocol of a process environment: how one launcher passes ranks to the processes it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from accel_state.topology import Topology


class ProcessEnvironment(Protocol):
    """A pure reader of the variables that one launcher sets for the processes it starts."""

    @property
    def name(self) -> str:
        """What a `Topology` calls its source."""
        ...

    def detect(self, environ: Mapping[str, str]) -> bool:
        """Whether this launcher started the process; true as soon as it left a trace, whole or not."""
        ...

    def topology(self, environ: Mapping[str, str]) -> Topology:
        """Return the process's place; called only where `detect` is true.

        Raises:
            ConfigError: If a variable is missing, no number, or contradicts another; it is named.
        """
        ...
