"""What a launcher is."""

from __future__ import annotations

from typing import ClassVar, Protocol

from accel_launch.plan import LaunchPlan
from accel_launch.request import LaunchRequest

LAUNCHER_GROUP = "accel.launchers"


class Launcher(Protocol):
    """A way to start processes. Its entry point names a class like this, made without arguments.

    Settings of its own are a tuple of `Setting` that the entry point of the same name in the group
    ``accel.launcher_settings`` names: their flags, variables and config keys work as those of all others.
    """

    name: ClassVar[str]
    """The name of its entry point."""

    def accepts(self, request: LaunchRequest) -> bool:
        """Tell whether to use this launcher for ``request`` where nobody names one.

        Launchers of other packages are asked before ours, by name; the first that says yes starts the run.
        """
        ...

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Say what would be done, as data; starts nothing and asks nothing of the machine."""
        ...

    def run(self, plan: LaunchPlan) -> int:
        """Do it, wait for the end, and return the exit code: 0, or that of the rank that failed first."""
        ...
