"""The files of a checkpoint that this rank writes, and the classes that the manifest records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from accel.checkpoints.items import ModelItem, RunObjects, class_name, model_items, other_items
from accel.checkpoints.rank_state import RankItem
from accel_backends.checkpoint_formats.protocol import SaveChoices
from accel_checkpoint.saving.pending_files import PendingFile
from accel_state.errors import CheckpointError

SaveHook = Callable[[list[nn.Module], list[Mapping[str, Any]], str], None]


def class_names(run: RunObjects) -> dict[str, list[str]]:
    """Return the users' classes by kind, for error messages when the checkpoint is loaded."""
    objects: dict[str, list[str]] = {}
    for item in (*model_items(run, run.models), *other_items(run)):
        if item.key:
            objects.setdefault(item.key, []).append(class_name(item.of_class))
    return objects


def collect(
    run: RunObjects,
    folder: Path,
    choices: SaveChoices,
    *,
    hooks: Sequence[SaveHook],
    value_of_rank_0: Callable[[str], str],
) -> list[PendingFile]:
    """Return this rank's files. Every rank must call it, since it may use collectives.

    Args:
        run: The objects to save.
        folder: The temporary folder, for hooks that write files themselves.
        choices: How to write the checkpoint, and this rank's part in it.
        hooks: Called with the models, the weights and the folder before anything is written. A hook that removes
            weights from the list must save them itself.
        value_of_rank_0: Returns rank 0's value for that of this rank.
    """
    if run.stepper.is_accumulating and not run.strategy.has_gradients_in_parameters:
        raise CheckpointError(
            "`save_state` was called within an accumulation, whose gradients are not reduced over all ranks yet and "
            "would be lost. Save when `accelerator.sync_gradients` is True, after the optimizer's step."
        )
    before = [run.form.model_state(run.strategy, model) for model in run.models]
    weights, files = list(before), list[PendingFile]()
    others = [*other_items(run), RankItem(run, choices.rank, None)]
    try:
        for hook in hooks:
            hook(run.bare_models, weights, str(folder))
    finally:
        # Even after a hook has failed on this rank: the other ranks may wait in the collectives of the format.
        # A hook may remove weights on rank 0 only, but all ranks take part in writing those that are left.
        kept = json.dumps([n for n, one in enumerate(before) if any(one is other for other in weights)])
        kept_on_0 = value_of_rank_0(kept)
        weights = weights if kept_on_0 == kept else [before[number] for number in json.loads(kept_on_0)]
        models = [ModelItem(run, index, None, state) for index, state in enumerate(weights)]
        files += [f for item in (*models, *others) if item.is_collective for f in item.save(choices)]
    return [*files, *(f for item in others if not item.is_collective for f in item.save(choices))]
