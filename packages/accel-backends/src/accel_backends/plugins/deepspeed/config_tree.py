"""Keys of a DeepSpeed config with their section, as ``zero_optimization.stage``."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

AUTO = "auto"
"""The value of a key that is to be filled."""


def node_of(config: Mapping[str, Any], key: str) -> tuple[Any, str]:
    """Return the section that a key stands in, None where there is none, and the key's last part."""
    *sections, last = key.split(".")
    found: Any = config
    for section in sections:
        found = found.get(section) if isinstance(found, Mapping) else None
        if found is None:
            return None, last
    return (found if isinstance(found, Mapping) else None), last


def value_of(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return what a key says, ``default`` where the config does not have it."""
    section, last = node_of(config, key)
    return default if section is None else section.get(last, default)


def has_key(config: Mapping[str, Any], key: str) -> bool:
    """Tell whether the config has the key, whatever it says."""
    section, last = node_of(config, key)
    return section is not None and last in section


def set_value(config: MutableMapping[str, Any], key: str, value: Any) -> None:
    """Set a key in place, adding the sections that it stands in."""
    *sections, last = key.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[last] = value


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key that is no section with its value, in the order of the config."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


class Change(NamedTuple):
    """The value that a key was given, and whether it was there before."""

    value: Any
    was_there: bool


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Change]:
    """Return the keys that have another value than before, or were not there."""
    return {
        key: Change(value, has_key(before, key))
        for key, value in leaves(after)
        if not has_key(before, key) or value_of(before, key) != value
    }


def unfill(config: Mapping[str, Any], filled: Mapping[str, Change]) -> dict[str, Any]:
    """Return a config as it was before keys of it were filled, but for those that were changed again since."""
    found = copy.deepcopy(dict(config))
    for key, (value, was_there) in filled.items():
        section, last = node_of(found, key)
        if section is None or last not in section or section[last] != value:
            continue
        if was_there:
            section[last] = AUTO
        else:
            del section[last]
    return found
