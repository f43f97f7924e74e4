"""Every setting of a launch, its value and who set it; and the same of DeepSpeed's own config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from accel_launch.config.file import ConfigFile
from accel_launch.options import OPTIONS, TOPICS
from accel_launch.resolution import Resolved, choose_engine, resolve, with_engine
from accel_state.environment import Setting
from accel_state.registry import Registry


class Row(NamedTuple):
    """One setting: its name, its value as text, who set it, and by what name."""

    heading: str
    name: str
    value: str
    source: str
    given_as: str


def rows_of(*, flags: Mapping[str, str], environ: Mapping[str, str], config: ConfigFile) -> list[Row]:
    """Return all settings, as a launch with these flags, variables and config file would see them.

    Raises:
        ConfigError: If one of them has a value that cannot be used.
    """
    settings = resolve(OPTIONS, flags=flags, environ=environ, config=config)
    settings = with_engine(settings, choose_engine(settings, config), config)
    return list(_rows(settings))


def as_text(rows: list[Row], *, config: ConfigFile, is_all: bool) -> str:
    """Return the rows as a table under headings; without ``is_all``, only those that are not defaults."""
    shown = [row for row in rows if is_all or row.source != "default"]
    lines = [f"config file: {config.path or 'none'}"]
    widths = [max((len(row[column]) for row in shown), default=0) for column in (1, 2)]
    heading = ""
    for row in shown:
        if row.heading != heading:
            heading = row.heading
            lines += ["", f"{heading}:"]
        source = f"{row.source} ({row.given_as})" if row.given_as else row.source
        lines.append(f"  {row.name:<{widths[0]}}  {row.value:<{widths[1]}}  {source}")
    if not is_all:
        lines += ["", f"{len(rows) - len(shown)} more settings have their default; `--all` shows them."]
    return "\n".join(lines)


def as_data(rows: list[Row]) -> dict[str, Any]:
    """Return the rows as JSON-ready data, by name."""
    return {row.name: {"value": row.value, "source": row.source, "given_as": row.given_as} for row in rows}


def _rows(settings: Mapping[str, Resolved]) -> Iterator[Row]:
    for heading, group in TOPICS.values():
        for setting in group:
            resolved = settings[setting.name]
            yield Row(
                heading,
                setting.name,
                _value(setting, resolved),
                resolved.source,
                _given_as(setting, resolved),
            )


def _value(setting: Setting, resolved: Resolved) -> str:
    if resolved.value is None or resolved.value == ():
        return "-"
    return "(secret)" if setting.launch.is_secret else setting.text_of(resolved.value)


def _given_as(setting: Setting, resolved: Resolved) -> str:
    names = {"flag": setting.flag, "environment": setting.variable, "config file": setting.config_key}
    return names.get(resolved.source) or ""


VIEW_GROUP = "accel.engine_views"


class ViewRow(NamedTuple):
    """One key of an engine's config: its value as text, and its source."""

    name: str
    value: str
    source: str


class EngineView(Protocol):
    """Shows an engine's config: gets each setting that was given, with its source, by name."""

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
