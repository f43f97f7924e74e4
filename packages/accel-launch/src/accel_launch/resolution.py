"""Who decides a setting: a flag, else the environment, else the config file, else the default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from accel_launch.config.file import ConfigFile
from accel_launch.config.keys import is_unset
from accel_state.environment import Setting

Source = Literal["flag", "environment", "config file", "default"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value of a setting, and who set it."""

    value: Any
    source: Source


def resolve(
    settings: Iterable[Setting], *, flags: Mapping[str, str], environ: Mapping[str, str], config: ConfigFile
) -> dict[str, Resolved]:
    """Return every setting's value by its name. A blank text says nothing, wherever it stands.

    Args:
        settings: What to look up.
        flags: Texts given on the command line, by the setting's name.
        environ: The launcher's environment.
        config: The config file.

    Raises:
        ConfigError: If the deciding text is not what its setting accepts; it names the flag, variable or key.
    """
    return {setting.name: _resolve_one(setting, flags, environ, config) for setting in settings}


def _resolve_one(
    setting: Setting, flags: Mapping[str, str], environ: Mapping[str, str], config: ConfigFile
) -> Resolved:
    if flags.get(setting.name, "").strip():
        return Resolved(setting.value_of(flags[setting.name], source=setting.flag), "flag")
    if environ.get(setting.variable, "").strip():
        return Resolved(setting.value_of(environ[setting.variable]), "environment")
    key = setting.config_key
    if key is not None and not is_unset(key, config.values.get(key)):
        text = _text_of(setting, config.values[key])
        if text.strip():
            return Resolved(setting.value_of(text, source=f"{key}` in `{config.path}"), "config file")
    return Resolved(setting.default, "default")


def _text_of(setting: Setting, value: Any) -> str:
    if value is False and any(choice.lower() == "no" for choice in setting.choices or ()):
        return "no"  # YAML reads a bare `no` as false
    return setting.text_of(value)
