"""Finding the launcher that a request is for."""

from __future__ import annotations

from accel_launch.launchers.protocol import LAUNCHER_GROUP, Launcher
from accel_launch.request import LaunchRequest
from accel_state.errors import ConfigError, LaunchError
from accel_state.registry import Registry


def select_launcher(request: LaunchRequest, registry: Registry[type[Launcher]] | None = None) -> Launcher:
    """Return the one installed launcher that accepts ``request``.

    Raises:
        LaunchError: If none does.
        ConfigError: If more than one does.
    """
    members = (Registry("launcher", LAUNCHER_GROUP) if registry is None else registry).items()
    accepting = [launcher for launcher in (make() for _, make in members) if launcher.accepts(request)]
    if not accepting:
        installed = ", ".join(name for name, _ in members) or "none"
        raise LaunchError(f"No launcher can start {request.describe()}. Installed launchers: {installed}.")
    if len(accepting) > 1:
        names = " and ".join(f"`{launcher.name}`" for launcher in accepting)
        raise ConfigError(
            f"The launchers {names} both claim to start {request.describe()}. Uninstall all but one of them."
        )
    return accepting[0]
