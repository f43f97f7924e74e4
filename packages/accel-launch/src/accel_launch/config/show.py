"""Every setting of a launch with its value and who set it, for people to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from accel_launch.config.file import ConfigFile
from accel_launch.engine import choose_engine, with_engine
from accel_launch.options import OPTIONS, TOPICS
from accel_launch.resolution import Resolved, resolve
from accel_state.environment import Setting


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
    """Return the rows as a table under headings; without ``is_all``, only what somebody set."""
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
    return "(secret)" if setting.is_secret else setting.text_of(resolved.value)


def _given_as(setting: Setting, resolved: Resolved) -> str:
    names = {"flag": setting.flag, "environment": setting.variable, "config file": setting.config_key}
    return names.get(resolved.source) or ""
