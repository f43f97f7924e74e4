"""What a launcher is."""

from __future__ import annotations

from typing import ClassVar, Protocol

from accel_launch.plan import LaunchPlan
from accel_launch.request import LaunchRequest

LAUNCHER_GROUP = "accel.launchers"


class Launcher(Protocol):
    """A way to start processes. Its entry point names a class like this, made without arguments."""

    name: ClassVar[str]

    def accepts(self, request: LaunchRequest) -> bool:
        """Tell whether this launcher is the one for ``request``; exactly one of all must say yes."""
        ...

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Say what would be done, as data; starts nothing and asks nothing of the machine."""
        ...

    def run(self, plan: LaunchPlan) -> int:
        """Do it, wait for the end, and return the exit code: 0, or that of the rank that failed first."""
        ...
