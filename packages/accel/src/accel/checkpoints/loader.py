"""Load a checkpoint on all ranks: agree on the folder, check it, load it, and exchange the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torch import nn

from accel.checkpoints.load_choices import LoadChoices
from accel.checkpoints.prepared import Prepared
from accel.checkpoints.restoration import Restoration
from accel_checkpoint.ranks.deferred_error import DeferredError
from accel_checkpoint.reading.listing import Found, checkpoints_in
from accel_checkpoint.reading.selection import agree_on_newest, check_loadable, part_of_save, token_of
from accel_checkpoint.reading.strictness import Strictness
from accel_checkpoint.saving.saver import Saver
from accel_state.errors import CheckpointError, ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.user_warnings import warn_user

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
) -> int | None:
    """Load a checkpoint. Every rank must call it; blocks until all ranks have loaded.

    Returns:
        Number of the next checkpoint; None if the checkpoints have no numbers.

    Raises:
        CheckpointError: On every rank, if any rank failed.
    """
    folder = input_dir.resolve()
    saver.log_failure()
    topology = saver.topology
    token = _token_of_rank_0(folder, saver) if topology.num_nodes > 1 else ""
    found: Found | None = None
    next_number = ""
    with _not_loaded(saver, "checked", folder) as deferred:
        if token:
            # Without a shared disk, this node's part may be of a later save, which was killed before rank 0 committed.
            folder = part_of_save(folder, token)
        # One process per node reads all files; the others only check that they exist.
        found = check_loadable(folder, verify=verify and topology.local_rank == 0)
        if topology.local_rank == 0:
            next_number = _next_number(found)
    next_number = deferred.agree(next_number, _highest)
    assert found is not None
    with _not_loaded(saver, "loaded", folder) as deferred:
        models = list(prepared.models)
        for hook in hooks:
            hook(models, str(found.path))
        Restoration(
            found,
            prepared,
            topology.rank,
            layout,
            Strictness(is_strict),
            restore_loaders=restore_loaders,
            choices=choices,
        ).run(models)
    deferred.agree()
    return int(next_number) if next_number else None


def newest_checkpoint(folder_of_checkpoints: Path | None, saver: Saver, *, missing_ok: bool) -> Path | None:
    """Return the newest checkpoint that the main process sees, the same on every rank. Every rank must call it.

    Warns if there are checkpoints, but none is complete.

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
    if newest is None and saver.topology.rank == 0:
        _warn_of_broken(folder_of_checkpoints)
    return newest


def _warn_of_broken(folder_of_checkpoints: Path) -> None:
    """Warn if a run starts anew although it has saved before."""
    broken = [
        f"`{found.path.name}` is {found.state.value}" for found in checkpoints_in(folder_of_checkpoints)
    ]
    if broken:
        warn_user(
            f"No checkpoint in `{folder_of_checkpoints}` is complete ({', '.join(broken)}), so none is loaded and the "
            f"run starts anew. Run `accel checkpoint verify {folder_of_checkpoints}` to see what is wrong.",
        )


def _not_loaded(saver: Saver, stage: str, folder: Path) -> DeferredError:
    agree = partial(saver.agree, is_begun=stage == "loaded")  # after all ranks came to "checked"
    return DeferredError(agree, stage, failed=f"The checkpoint `{folder}` was not loaded")


def _token_of_rank_0(folder: Path, saver: Saver) -> str:
    """Return the token of the save that rank 0 loads."""
    token = ""
    with _not_loaded(saver, "token", folder) as deferred:
        if saver.topology.rank == 0:
            token = token_of(folder)
    return deferred.agree(token)


def _next_number(found: Found) -> str:
    """Return the number after the highest one beside ``found``, so that the next save replaces no checkpoint."""
    if found.number is None:
        return ""
    numbers = [one.number for one in checkpoints_in(found.path.parent) if one.number is not None]
    return str(max([found.number, *numbers]) + 1)


def _highest(numbers: Sequence[str]) -> str:
    return str(max(int(number) for number in numbers if number)) if numbers[0] else ""
