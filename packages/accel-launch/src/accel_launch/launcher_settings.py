"""Settings that launchers of other packages bring along, found by the entry points ``accel.launcher_settings``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from accel_state.environment import Setting
from accel_state.errors import ConfigError
from accel_state.registry import Registry

SETTINGS_GROUP = "accel.launcher_settings"


def installed_settings(
    ours: Iterable[Setting], registry: Registry[tuple[Setting, ...]] | None = None
) -> dict[str, tuple[Setting, ...]]:
    """Return the settings of each installed launcher of another package, by the launcher's name.

    Raises:
        ConfigError: If a table holds anything but settings, or a name that another setting has.
        NotAvailableError: If a package cannot be imported.
    """
    tables: Mapping[str, tuple[Setting, ...]] = dict(
        (Registry("table of launcher settings", SETTINGS_GROUP) if registry is None else registry).items()
    )
    taken = {name for setting in ours for name in _names_of(setting)}
    for launcher, settings in tables.items():
        where = f"The settings of the launcher `{launcher}`"
        for setting in settings:
            if not isinstance(setting, Setting):
                raise ConfigError(
                    f"{where} must be `Setting` objects, but one is a {type(setting).__name__}."
                )
            names = _names_of(setting)
            if names & taken:
                both = ", ".join(f"`{name}`" for name in sorted(names & taken))
                raise ConfigError(
                    f"{where} have a name that is taken: {both}. Its package must choose another; without it "
                    "everything works as before."
                )
            taken |= names
    return {launcher: tuple(settings) for launcher, settings in tables.items()}


def _names_of(setting: Setting) -> set[str]:
    names = {setting.name, setting.flag, *setting.other_flags, setting.config_key, setting.variable}
    return {name for name in names if name}
