"""Tables, for services that store them as files."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from accel_state.errors import ConfigError


def table_rows(data: Any, dataframe: Any) -> Any:
    """Return the content of a table: ``dataframe`` if given, else the rows ``data``.

    Raises:
        ConfigError: If neither is given.
    """
    if dataframe is None and data is None:
        raise ConfigError("`log_table` has no rows. Pass `data` (and `columns`), or a `dataframe`.")
    return data if dataframe is None else dataframe


def file_name(table_name: str, *, step: int | None, suffix: str) -> str:
    """Return the file name for a table, such as ``words_3.csv`` for ``words`` at step 3; an existing suffix is kept."""
    path = PurePath(table_name)
    end = "" if step is None else f"_{step}"
    return str(path.with_name(f"{path.stem}{end}{path.suffix or suffix}"))
