"""Tables for services that keep them as files."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from accel_state.errors import ConfigError


def table_rows(data: Any, dataframe: Any) -> Any:
    """Return what a table is made of: ``dataframe`` if there is one, else the rows ``data``.

    Raises:
        ConfigError: If there is neither.
    """
    if dataframe is None and data is None:
        raise ConfigError("`log_table` has no rows. Pass `data` (and `columns`), or a `dataframe`.")
    return data if dataframe is None else dataframe


def file_name(table_name: str, *, step: int | None, suffix: str) -> str:
    """Return the file for a table: ``words`` at step 3 is ``words_3.csv``; a suffix that is there stays."""
    path = PurePath(table_name)
    end = "" if step is None else f"_{step}"
    return str(path.with_name(f"{path.stem}{end}{path.suffix or suffix}"))
