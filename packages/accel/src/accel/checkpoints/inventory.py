"""Compare the files of a checkpoint with the objects of a run, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from accel.checkpoints.load_choices import LoadChoices
from accel.checkpoints.prepared import Prepared
from accel_backends.checkpoint_formats.choosing import saved_models, saved_optimizers
from accel_checkpoint import file_names as layout
from accel_checkpoint.file_names import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME
from accel_checkpoint.manifest import has_manifest as has_manifest_in
from accel_checkpoint.manifest import read_manifest
from accel_checkpoint.reading.strictness import Strictness


def check_inventory(
    folder: Path,
    names: Sequence[str],
    prepared: Prepared,
    *,
    num_models: int,
    has_manifest: bool,
    strict: Strictness,
    choices: LoadChoices,
) -> None:
    """Report every file without an object, and every object without a file.

    Args:
        folder: The folder of the checkpoint.
        names: Its file names.
        prepared: The objects to load it into.
        num_models: Number of models to load, without those that a hook loads.
        has_manifest: Whether it has our manifest; Accelerate writes no file for most loaders.
        strict: Whether a mismatch is an error or a warning.
        choices: Which parts are loaded; others are not looked at.
    """

    def check(kind: str, saved: list[int], num: int, file_of: Callable[[int], str]) -> None:
        for index in saved:
            if index >= num:
                strict.report(
                    f"`{file_of(index)}` in `{folder}` has no {kind} to go into: {_count(kind, len(saved))} saved, "
                    f"{_count(kind, num)} here. Prepare or register the same objects."
                )
        for index in range(num):
            if index not in saved:
                strict.report(
                    f"`{file_of(index)}`, the state of {kind} {index}, is missing in `{folder}`."
                    f"{_elsewhere(folder)}"
                )

    check("model", saved_models(names), num_models, weights_file)
    if choices.optimizers:
        check("optimizer", saved_optimizers(names), len(prepared.optimizers), _file_of(OPTIMIZER_NAME))
    if choices.schedulers:
        schedulers = layout.numbers_of(SCHEDULER_NAME, names)
        check("scheduler", schedulers, len(prepared.schedulers), _file_of(SCHEDULER_NAME))
    check("custom object", layout.numbers_of_custom(names), len(prepared.custom), layout.custom_file)
    if has_manifest:
        loaders = layout.numbers_of(layout.LOADER_NAME, names)
        check("loader", loaders, len(prepared.loaders), _file_of(layout.LOADER_NAME))
    _check_scaler(folder, names, prepared, strict)


def _elsewhere(folder: Path) -> str:
    """Return a hint on where the other files are, if the folder holds only one node's part of a checkpoint."""
    if not has_manifest_in(folder) or read_manifest(folder).place == 0:
        return ""
    return (
        " The main process's machine may have it, but shares no disk with this one: copy it from there, and save with "
        "`ProjectConfiguration(save_on_each_node=True)`."
    )


def weights_file(index: int) -> str:
    """Return the file name that messages use for the weights of model ``index``."""
    return layout.weight_format(index, safe=True).whole


def _check_scaler(folder: Path, names: Sequence[str], prepared: Prepared, strict: Strictness) -> None:
    has_scaler = prepared.precision.scaler is not None
    if has_scaler and SCALER_NAME not in names:
        strict.report(
            f"`{SCALER_NAME}` is missing in `{folder}`: it was saved without the gradient scaler that "
            f"`mixed_precision={prepared.precision.name}` uses."
        )
    if not has_scaler and SCALER_NAME in names:
        strict.report(
            f"`{SCALER_NAME}` in `{folder}` is the state of a gradient scaler, but this run has none: "
            f"`mixed_precision={prepared.precision.name}`."
        )


def _file_of(stem: str) -> Callable[[int], str]:
    return lambda index: layout.numbered_file(stem, index)


def _count(kind: str, num: int) -> str:
    return f"{num} {kind}{'' if num == 1 else 's'}"
