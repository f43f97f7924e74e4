"""Tables that another machine wrote, as JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

Types = dict[str, type | tuple[type, ...]]


def has_entries(value: object, types: Types) -> bool:
    """Whether ``value`` is a table that has entries of these types, and perhaps others."""
    is_table = isinstance(value, dict) and types.keys() <= value.keys()
    return is_table and all(isinstance(value[name], kind) for name, kind in types.items())


def read_table(text: str | bytes, types: Types) -> dict[str, Any] | None:
    """Return the table that ``text`` is if it `has_entries` of these types, else None."""
    with suppress(ValueError, RecursionError):
        table: dict[str, Any] = json.loads(text)
        return table if has_entries(table, types) else None
    return None
