"""Every setting of a launch, its value and who set it; and the same of DeepSpeed's own config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from accel_launch.config.file import ConfigFile
from accel_launch.options import OPTIONS, TOPICS
from accel_launch.resolution import Resolved, decide
from accel_state.environment import Setting
from accel_state.registry import Registry

VIEW_GROUP = "accel.engine_views"


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
    settings, _ = decide(OPTIONS, flags=flags, environ=environ, config=config)
    return [
        Row(
            heading,
            setting.name,
            _value(setting, settings[setting.name]),
            settings[setting.name].source,
            _given_as(setting, settings[setting.name]),
        )
        for heading, group in TOPICS.values()
        for setting in group
    ]


def as_text(rows: list[Row], *, config: ConfigFile, is_all: bool) -> str:
    """Return the rows as a table under headings; without ``is_all``, only those that are not defaults."""
    shown = [row for row in rows if is_all or row.source != "default"]
    lines = [f"config file: {config.path or 'none'}"]
    table = as_table([(row.name, row.value, _source(row)) for row in shown])
    heading = ""
    for row, line in zip(shown, table, strict=True):
        if row.heading != heading:
            heading = row.heading
            lines += ["", f"{heading}:"]
        lines.append(f"  {line}")
    if not is_all:
        lines += ["", f"{len(rows) - len(shown)} more settings have their default; `--all` shows them."]
    return "\n".join(lines)


def as_data(rows: list[Row]) -> dict[str, Any]:
    """Return the rows as JSON-ready data, by name."""
    return {row.name: {"value": row.value, "source": row.source, "given_as": row.given_as} for row in rows}


def as_table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return a line for each row, with columns as wide as they need to be."""
    first, second = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    return [f"{name:<{first}}  {value:<{second}}  {source}".rstrip() for name, value, source in rows]


def _value(setting: Setting, resolved: Resolved) -> str:
    if resolved.value is None or resolved.value == ():
        return "-"
    return "(secret)" if setting.launch.is_secret else setting.text_of(resolved.value)


def _given_as(setting: Setting, resolved: Resolved) -> str:
    names = {"flag": setting.flag, "environment": setting.variable, "config file": setting.config_key}
    return names.get(resolved.source) or ""


def _source(row: Row) -> str:
    return f"{row.source} ({row.given_as})" if row.given_as else row.source


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
) -> list[tuple[str, str, str]]:
    """Return the keys of an engine's config, as a launch with these flags, variables and config file would fill it.

    Each has its value as text, and its source.

    Raises:
        ConfigError: If one of them has a value that cannot be used, or no package offers a view of the engine.
    """
    view: EngineView = Registry[EngineView]("engine view", VIEW_GROUP).get(engine)
    settings, _ = decide(OPTIONS, flags=flags, environ=environ, config=config)
    given = {
        setting.name: (resolved.value, _origin(_given_as(setting, resolved), resolved, config))
        for setting in OPTIONS
        if (resolved := settings[setting.name]).source != "default" and resolved.value is not None
    }
    return list(view(given))


def _origin(name: str, resolved: Resolved, config: ConfigFile) -> str:
    return f"`{name}` in `{config.path}`" if resolved.source == "config file" else f"`{name}`"
