"""Compare the files of a checkpoint with the objects of a run, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from accel.checkpoints.load_choices import LoadChoices
from accel.checkpoints.prepared import Prepared
from accel_backends.checkpoint_formats.choosing import saved_models, saved_optimizers
from accel_checkpoint import file_names as layout
from accel_checkpoint.file_names import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME
from accel_checkpoint.reading.listing import Found
from accel_checkpoint.reading.strictness import Strictness
from accel_state.user_warnings import warn_user


def check_inventory(
    found: Found,
    names: Sequence[str],
    prepared: Prepared,
    strict: Strictness,
    choices: LoadChoices,
    *,
    num_models: int,
) -> None:
    """Report every object without a file, and warn about the files without an object.

    Args:
        found: The checkpoint.
        names: Its file names.
        prepared: The objects to load it into.
        strict: Whether a mismatch is an error or a warning.
        choices: Which parts are loaded; others are not looked at.
        num_models: Number of models to load, without those that a hook loads.
    """
    unused: list[str] = []
    folder, elsewhere = found.path, ""
    if found.manifest is not None and found.manifest.place != 0:  # one node's part of a checkpoint
        elsewhere = (
            " The main process's machine may have it, but shares no disk with this one: copy it from there, and save "
            "with `ProjectConfiguration(save_on_each_node=True)`."
        )

    def check(kind: str, saved: list[int], num: int, file_of: Callable[[int], str]) -> None:
        unused.extend(f"`{file_of(index)}`" for index in saved if index >= num)
        for index in range(num):
            if index not in saved:
                strict.report(
                    f"`{file_of(index)}`, the state of {kind} {index}, is missing in `{folder}`.{elsewhere}"
                )

    check("model", saved_models(names), num_models, weights_file)
    if choices.optimizers:
        check("optimizer", saved_optimizers(names), len(prepared.optimizers), _file_of(OPTIMIZER_NAME))
    if choices.schedulers:
        schedulers = layout.numbers_of(SCHEDULER_NAME, names)
        check("scheduler", schedulers, len(prepared.schedulers), _file_of(SCHEDULER_NAME))
    check("custom object", layout.numbers_of_custom(names), len(prepared.custom), layout.custom_file)
    unused += [
        f"`{_file_of(layout.LOADER_NAME)(n)}`"
        for n in layout.numbers_of(layout.LOADER_NAME, names)[len(prepared.loaders) :]
    ]
    if prepared.precision.scaler is None and SCALER_NAME in names:
        unused.append(f"`{SCALER_NAME}`")
    if unused:
        warn_user(
            f"Nothing is prepared or registered for these files in `{folder}`, which are not loaded: "
            f"{', '.join(unused)}. To continue the training, prepare and register the same objects."
        )
    if prepared.precision.scaler is not None and SCALER_NAME not in names:
        strict.report(
            f"`{SCALER_NAME}` is missing in `{folder}`: it was saved without the gradient scaler that "
            f"`mixed_precision={prepared.precision.name}` uses."
        )


def weights_file(index: int) -> str:
    """Return the file name that messages use for the weights of model ``index``."""
    return layout.weight_format(index, safe=True).whole


def _file_of(stem: str) -> Callable[[int], str]:
    return partial(layout.numbered_file, stem)
