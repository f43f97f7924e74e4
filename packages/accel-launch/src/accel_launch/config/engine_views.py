"""The config of an engine of its own, as a launch with these settings would fill it; engines add theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from accel_launch.config.file import ConfigFile
from accel_launch.engine import choose_engine, with_engine
from accel_launch.options import OPTIONS
from accel_launch.resolution import Resolved, resolve
from accel_state.environment import Setting
from accel_state.registry import Registry

VIEW_GROUP = "accel.engine_views"


class ViewRow(NamedTuple):
    """One key of an engine's config: its value as text, and who says it."""

    name: str
    value: str
    source: str


class EngineView(Protocol):
    """Shows an engine's config: gets each setting that somebody gave, with who gave it, by name."""

    def __call__(self, given: Mapping[str, tuple[Any, str]]) -> Iterable[tuple[str, str, str]]:
        """Return key, value and origin of each key, in the order of the config.

        Raises:
            ConfigError: If no config can be made of the settings.
        """
        ...


def engine_rows(
    engine: str, *, flags: Mapping[str, str], environ: Mapping[str, str], config: ConfigFile
) -> list[ViewRow]:
    """Return the keys of an engine's config, as a launch with these flags, variables and config file would fill it.

    Raises:
        ConfigError: If one of them has a value that cannot be used, or no package offers a view of the engine.
    """
    view: EngineView = Registry[EngineView]("engine view", VIEW_GROUP).get(engine)
    settings = resolve(OPTIONS, flags=flags, environ=environ, config=config)
    settings = with_engine(settings, choose_engine(settings, config), config)
    given = {
        setting.name: (settings[setting.name].value, _origin(setting, settings[setting.name], config))
        for setting in OPTIONS
        if settings[setting.name].source != "default" and settings[setting.name].value is not None
    }
    return [ViewRow(*row) for row in view(given)]


def as_table(rows: list[ViewRow]) -> str:
    """Return the rows as a table, one line for each key."""
    lines = [ViewRow("key", "value", "said by"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    return "\n".join(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {by}".rstrip() for name, value, by in lines)


def _origin(setting: Setting, resolved: Resolved, config: ConfigFile) -> str:
    names = {
        "flag": f"`{setting.flag}`",
        "environment": f"`{setting.variable}`",
        "config file": f"`{setting.config_key}` in `{config.path}`",
    }
    return names[resolved.source]
