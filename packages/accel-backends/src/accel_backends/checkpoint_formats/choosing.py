"""Find the format of a checkpoint by its name, or by the names of its files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from accel_backends.checkpoint_formats.protocol import CheckpointFormat
from accel_state.registry import Registry

FORMATS: Registry[Callable[[], CheckpointFormat]] = Registry("checkpoint format", "accel.checkpoint_formats")


@dataclass(frozen=True, slots=True)
class SavedFormats:
    """The format of each model and optimizer in a checkpoint, by index."""

    models: dict[int, CheckpointFormat] = field(default_factory=dict)
    optimizers: dict[int, CheckpointFormat] = field(default_factory=dict)

    @property
    def are_open(self) -> bool:
        """Whether opening a model or an optimizer opens all its files, so that another save may replace them then."""
        return all(one.opens_all for one in (*self.models.values(), *self.optimizers.values()))


def format_called(name: str) -> CheckpointFormat:
    """Return the format of that name.

    Raises:
        UnknownNameError: If it is unknown.
    """
    return FORMATS.get(name)()


def saved_formats(
    names: Collection[str],
    *,
    form: CheckpointFormat,
    saved_as: str = "",
    num_models: int,
    num_optimizers: int,
) -> SavedFormats:
    """Return the formats in which models and optimizers are in a checkpoint.

    Formats are asked in turn until all prepared objects are found. The first is the one that the manifest names, then
    follow the others by name, on every rank the same.

    Args:
        names: The files of the checkpoint.
        form: The format of the run, which comes first if the checkpoint has no manifest.
        saved_as: The format that the manifest names; empty if there is none.
        num_models: Number of prepared models.
        num_optimizers: Number of prepared optimizers.

    Raises:
        UnknownNameError: If no format is called ``saved_as``.
    """
    saved = SavedFormats()
    for one in _in_turn(form, saved_as):
        models, optimizers = one.indexes_in(names)
        for index in models:
            saved.models.setdefault(index, one)
        for index in optimizers:
            saved.optimizers.setdefault(index, one)
        if len(saved.models) >= num_models and len(saved.optimizers) >= num_optimizers:
            break
    return saved


def _in_turn(form: CheckpointFormat, saved_as: str) -> Iterator[CheckpointFormat]:
    first = form if saved_as in ("", form.name) else format_called(saved_as)
    yield first
    yield from (format_called(name) for name in FORMATS.names() if name != first.name)
