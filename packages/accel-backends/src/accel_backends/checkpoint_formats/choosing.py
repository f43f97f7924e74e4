"""Which format a checkpoint is in, known by its files."""

from __future__ import annotations

from collections.abc import Collection

from accel_backends.checkpoint_formats.full import FullFormat
from accel_backends.checkpoint_formats.protocol import CheckpointFormat
from accel_state.errors import CheckpointError, ConfigError

FORMATS: tuple[CheckpointFormat, ...] = (FullFormat(),)
"""All that are known; the first that recognises the files reads them."""


def format_called(name: str) -> CheckpointFormat:
    """Return the format of that name.

    Raises:
        ConfigError: If there is none.
    """
    for one in FORMATS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in FORMATS)
    raise ConfigError(f"There is no checkpoint format `{name}`. Known: {known}.")


def format_of(names: Collection[str], *, index: int) -> CheckpointFormat:
    """Return the format in which the model of that index lies in the files of a checkpoint.

    Raises:
        CheckpointError: If no known format recognises them.
    """
    for one in FORMATS:
        if one.recognises(names, index=index):
            return one
    known = ", ".join(one.name for one in FORMATS)
    raise CheckpointError(f"No file of model {index} is there in a known checkpoint format ({known}).")
