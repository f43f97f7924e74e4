"""Finds the format of a checkpoint by its name or its files."""

from __future__ import annotations

from collections.abc import Callable, Collection

from accel_backends.checkpoint_formats.protocol import CheckpointFormat
from accel_state.errors import CheckpointError
from accel_state.registry import Registry

FORMATS: Registry[Callable[[], CheckpointFormat]] = Registry("checkpoint format", "accel.checkpoint_formats")


def format_called(name: str) -> CheckpointFormat:
    """Return the format of that name.

    Raises:
        UnknownNameError: If there is none.
    """
    return FORMATS.get(name)()


def format_of(names: Collection[str], *, index: int) -> CheckpointFormat:
    """Return the format in which the model of that index lies in the files of a checkpoint.

    If several formats recognise the files, it is the first of them by name, on every rank the same.

    Raises:
        CheckpointError: If no known format recognises them.
    """
    for one in _all():
        if index in one.model_numbers(names):
            return one
    known = ", ".join(FORMATS.names())
    raise CheckpointError(
        f"No file of model {index} is there in a known checkpoint format ({known}). Install the package that adds the "
        "format in which it was saved."
    )


def format_of_optimizer(names: Collection[str], *, index: int) -> CheckpointFormat | None:
    """Return the format in which the optimizer of that index lies in the files of a checkpoint, None if it does not."""
    return next((one for one in _all() if index in one.optimizer_numbers(names)), None)


def saved_models(names: Collection[str]) -> list[int]:
    """Return the sorted indexes of the models in a checkpoint, in whatever format."""
    return sorted({index for one in _all() for index in one.model_numbers(names)})


def saved_optimizers(names: Collection[str]) -> list[int]:
    """Return the sorted indexes of the optimizers in a checkpoint, in whatever format."""
    return sorted({index for one in _all() for index in one.optimizer_numbers(names)})


def _all() -> list[CheckpointFormat]:
    return [format_called(name) for name in FORMATS.names()]
