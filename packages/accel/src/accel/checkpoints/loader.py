"""Load a checkpoint on all ranks: agree on the folder, check it, load it, and exchange the outcome."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from torch import nn

from accel.checkpoints.load_choices import LoadChoices
from accel.checkpoints.prepared import Prepared
from accel.checkpoints.restoration import Restoration
from accel_checkpoint import trusted_files
from accel_checkpoint.ranks.agreement import first
from accel_checkpoint.ranks.deferred_error import DeferredError
from accel_checkpoint.reading.listing import Found, checkpoints_in
from accel_checkpoint.reading.selection import agree_on_newest, check_loadable, part_of_save, token_of
from accel_checkpoint.reading.strictness import Strictness
from accel_checkpoint.saving.saver import Saver
from accel_checkpoint.saving.transaction import is_saved_here
from accel_state.errors import CheckpointError, ConfigError
from accel_state.mesh_layout import MeshLayout

LoadHook = Callable[[list[nn.Module], str], None]


def load_checkpoint(
    prepared: Prepared,
    input_dir: Path,
    *,
    saver: Saver,
    layout: MeshLayout,
    hooks: Sequence[LoadHook],
    verify: bool,
    is_strict: bool,
    restore_loaders: bool,
    choices: LoadChoices,
    is_trusted: bool,
) -> int | None:
    """Load a checkpoint. Every rank must call it; blocks until all ranks have loaded.

    With ``is_trusted``, or if this process has saved it, its pickles are read by any torch; see `trusted_files`.

    Returns:
        Number of the next checkpoint; None if the checkpoints have no numbers.

    Raises:
        CheckpointError: On every rank, if any rank failed.
        ReplacedError: On every rank, if another save has replaced the checkpoint meanwhile.
    """
    folder = input_dir.resolve()
    saver.log_failure()
    topology = saver.topology
    token = saver.agree("token", token_of(folder) if topology.rank == 0 else "", first)
    found: Found | None = None
    next_number = ""
    with _not_loaded(saver, "checked", folder) as deferred:
        if topology.num_nodes > 1 and token:
            # Without a shared disk, this node's part may be of a later save, which was killed before rank 0 committed.
            folder = part_of_save(folder, token)
        # One process per node reads all files; the others only check that they exist.
        found = check_loadable(folder, verify=verify and topology.local_rank == 0)
        if topology.local_rank == 0:
            next_number = _next_number(found)
    next_number = deferred.agree(next_number, _highest, is_replaced=_is_replaced(folder, token))
    assert found is not None
    with trusted_files(is_trusted or is_saved_here(token)), ExitStack() as opened:
        with _not_loaded(saver, "opened", folder) as deferred:
            bare = prepared.bare_models()
            left = list(bare)
            for hook in hooks:
                hook(left, str(found.path))
            models = [prepared.models[bare.index(model)] for model in left]
            strict = Strictness(is_strict)
            restoration = Restoration(
                found, prepared, topology.rank, layout, strict, restore_loaders, choices
            )
            restoration.open(models, opened)
        deferred.agree(is_replaced=_is_replaced(folder, token))
        with _not_loaded(saver, "loaded", folder) as deferred:
            restoration.load()
        deferred.agree(is_replaced=not restoration.has_opened_all and _is_replaced(folder, token))
    return int(next_number) if next_number else None


def newest_checkpoint(folder_of_checkpoints: Path | None, saver: Saver, *, missing_ok: bool) -> Path | None:
    """Return the newest checkpoint that the main process sees, the same on every rank. Every rank must call it.

    Warns of newer ones that are incomplete or damaged.

    Raises:
        ConfigError: If no folder was chosen.
        CheckpointError: If there is none, unless ``missing_ok``.
    """
    if folder_of_checkpoints is None:
        raise ConfigError(
            "`load_state` does not know where to look: pass `input_dir`, or give the Accelerator a `project_dir`."
        )
    newest = agree_on_newest(folder_of_checkpoints.resolve(), saver)
    if newest is None and not missing_ok:
        raise CheckpointError(
            f"There is no complete checkpoint in `{folder_of_checkpoints}`. Pass the folder of the checkpoint to load, "
            "or `missing_ok=True` to start anew."
        )
    return newest


def _not_loaded(saver: Saver, stage: str, folder: Path) -> DeferredError:
    agree = partial(saver.agree, is_begun=stage != "checked")  # all ranks came to that
    return DeferredError(agree, stage, failed=f"The checkpoint `{folder}` was not loaded")


def _is_replaced(folder: Path, token: str) -> bool:
    """Whether a folder that held the save ``token`` holds another one; not if it has been removed."""
    return bool(token) and os.path.isdir(folder) and token_of(folder) != token  # noqa: PTH112 (raises nothing)


def _next_number(found: Found) -> str:
    """Return the number after the highest one beside ``found``, so that the next save replaces no checkpoint."""
    if found.number is None:
        return ""
    numbers = [one.number for one in checkpoints_in(found.path.parent) if one.number is not None]
    return str(max([found.number, *numbers]) + 1)


def _highest(numbers: Sequence[str]) -> str:
    return str(max(int(number) for number in numbers if number)) if numbers[0] else ""
