"""Find the format of a checkpoint by its name, or by the names of its files."""

from __future__ import annotations

from collections.abc import Callable, Collection

from accel_backends.checkpoint_formats.protocol import CheckpointFormat
from accel_state.registry import Registry

FORMATS: Registry[Callable[[], CheckpointFormat]] = Registry("checkpoint format", "accel.checkpoint_formats")


def format_called(name: str) -> CheckpointFormat:
    """Return the format of that name.

    Raises:
        UnknownNameError: If there is none.
    """
    return FORMATS.get(name)()


def formats_of_models(names: Collection[str]) -> dict[int, CheckpointFormat]:
    """Return the format of each model in the files of a checkpoint, by index.

    If several formats recognize the files, it is the first of them by name, on every rank the same.
    """
    formats: dict[int, CheckpointFormat] = {}
    for form in map(format_called, FORMATS.names()):
        for index in form.model_numbers(names):
            formats.setdefault(index, form)
    return formats


def formats_of_optimizers(names: Collection[str]) -> dict[int, CheckpointFormat]:
    """Return the format of each optimizer in the files of a checkpoint, by index."""
    formats: dict[int, CheckpointFormat] = {}
    for form in map(format_called, FORMATS.names()):
        for index in form.optimizer_numbers(names):
            formats.setdefault(index, form)
    return formats
