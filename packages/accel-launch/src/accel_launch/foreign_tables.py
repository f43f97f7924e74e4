"""Tables that another machine wrote, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

Types = Mapping[str, type | tuple[type, ...]]


def has_entries(value: object, types: Types) -> bool:
    """Whether ``value`` is a table that has entries of these types, and perhaps others."""
    if not isinstance(value, dict) or not types.keys() <= value.keys():
        return False
    return all(isinstance(value[name], kind) for name, kind in types.items())


def read_table(text: str | bytes, types: Types) -> dict[str, Any] | None:
    """Return the table that ``text`` is if it `has_entries` of these types, else None."""
    with suppress(ValueError, RecursionError):
        table: dict[str, Any] = json.loads(text)
        return table if has_entries(table, types) else None
    return None
