"""Finding the launcher that a request is for."""

from __future__ import annotations

from accel_launch.launchers.protocol import LAUNCHER_GROUP, Launcher
from accel_launch.launchers.routes import BUILT_IN, check_named, route
from accel_launch.request import LaunchRequest
from accel_launch.settings import AUTO
from accel_state.errors import LaunchError
from accel_state.registry import Registry


def select_launcher(request: LaunchRequest, registry: Registry[type[Launcher]] | None = None) -> Launcher:
    """Return the launcher that starts ``request``: the first of `accepting_launchers`, with its errors."""
    return accepting_launchers(request, registry)[0]


def accepting_launchers(
    request: LaunchRequest, registry: Registry[type[Launcher]] | None = None
) -> list[Launcher]:
    """Return the launchers that ``request`` is for, the one that starts it first.

    `--launcher` decides alone. Without it, launchers of other packages come before ours, by name; of ours there is
    always one, which follows from the settings.

    Raises:
        UnknownNameError: If `--launcher` names none that is installed.
        ConfigError: If it names one that lacks something.
        LaunchError: If none accepts the request.
    """
    launchers = Registry("launcher", LAUNCHER_GROUP) if registry is None else registry
    if request.value("launcher") != AUTO:
        named = launchers.get(request.value("launcher"))()
        check_named(request)
        return [named]
    others = [launchers.get(name)() for name in launchers.names() if name not in BUILT_IN]
    accepting = [launcher for launcher in others if launcher.accepts(request)]
    ours = route(request)
    if ours in launchers:
        accepting.append(launchers.get(ours)())
    if not accepting:
        installed = ", ".join(launchers.names()) or "none"
        raise LaunchError(f"No launcher can start {request.describe()}. Installed launchers: {installed}.")
    return accepting
