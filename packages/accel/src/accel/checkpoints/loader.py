"""Load a checkpoint on all ranks: agree on the folder, check it, load it, and exchange the outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from accel.checkpoints.prepared import Prepared
from accel.checkpoints.restoration import Restoration
from accel_checkpoint.ranks.agreement import first
from accel_checkpoint.ranks.reports import reason_of
from accel_checkpoint.reading.listing import Found, checkpoints_in
from accel_checkpoint.reading.selection import check_loadable, newest_checkpoint, part_of_save, token_of
from accel_checkpoint.reading.strictness import Strictness
from accel_checkpoint.saving.saver import Saver
from accel_state.errors import CheckpointError, ConfigError
from accel_state.mesh_layout import MeshLayout

LoadHook = Callable[[list[nn.Module], str], None]


def load_checkpoint(
    prepared: Prepared,
    input_dir: Path | None,
    *,
    folder_of_checkpoints: Path | None,
    saver: Saver,
    layout: MeshLayout,
    hooks: Sequence[LoadHook],
    verify: bool,
    is_strict: bool,
    restore_loaders: bool,
) -> int | None:
    """Load a checkpoint. Every rank must call it; blocks until all ranks have loaded.

    Returns:
        Number of the next checkpoint; None if the checkpoints have no numbers.

    Raises:
        CheckpointError: On every rank, if any rank failed.
    """
    folder = _agree_on_folder(input_dir, folder_of_checkpoints, saver)
    topology = saver.topology
    if topology.num_nodes > 1:
        # Without a shared disk, this node's part may be of a later save, which was killed before rank 0 committed.
        main = saver.agree("token", token_of(folder) if topology.rank == 0 else "", first)
        folder = part_of_save(folder, main) if main else folder
    found: Found | None = None
    with _DeferredError(saver, "checked", folder) as deferred:
        # One process per node reads all files; the others only check that they exist.
        found = check_loadable(folder, verify=verify and topology.local_rank == 0)
    deferred.check()
    assert found is not None
    with _DeferredError(saver, "loaded", folder) as deferred:
        models = list(prepared.models)
        for hook in hooks:
            hook(models, str(found.path))
        Restoration(
            found, prepared, topology.rank, layout, Strictness(is_strict), restore_loaders=restore_loaders
        ).run(models)
    deferred.check()
    return _next_iteration(found, saver)


def check_load_arguments(load_kwargs: Mapping[str, Any] | None, others: Mapping[str, Any]) -> None:
    """Reject arguments that would have no effect, or that would allow unpickling.

    Raises:
        ConfigError: If there is one; names it.
    """
    given = dict(load_kwargs or {})
    if given.pop("weights_only", True) is not True:
        raise ConfigError("`weights_only=False` is not supported: a checkpoint could run code. Leave it out.")
    given.pop("map_location", None)
    unknown = sorted({*given, *others} - {"map_location"})
    if unknown:
        raise ConfigError(
            f"`load_state` knows no argument `{unknown[0]}`. Known: verify, strict, restore_loaders, load_kwargs."
        )


class _DeferredError:
    """Defers this rank's error until the other ranks know about it."""

    def __init__(self, saver: Saver, stage: str, folder: Path) -> None:
        self._saver, self._stage, self._folder = saver, stage, folder
        self._error: Exception | None = None

    def __enter__(self) -> _DeferredError:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        # Ctrl-C and the like propagate at once; any other error is first reported to the other ranks.
        self._error = error if isinstance(error, Exception) else None
        return self._error is not None

    def check(self) -> None:
        """Raise this rank's error, or one that names the ranks that failed."""
        own = "" if self._error is None else reason_of(self._error)
        failed = self._saver.agree(self._stage, own, _failures)
        if self._error is not None:
            raise self._error
        if failed:
            raise CheckpointError(f"The checkpoint `{self._folder}` was not loaded ({failed}).")


def _failures(reports: Sequence[str]) -> str:
    return "; ".join(f"rank {rank}: {report}" for rank, report in enumerate(reports) if report)


def _agree_on_folder(input_dir: Path | None, folder_of_checkpoints: Path | None, saver: Saver) -> Path:
    """Return the folder to load: the given one, or the newest one that the main process sees."""
    if input_dir is not None:
        return input_dir.resolve()
    if folder_of_checkpoints is None:
        raise ConfigError(
            "`load_state` does not know where to look: pass `input_dir`, or give the Accelerator a `project_dir`."
        )
    name, error = "", ""
    if saver.topology.rank == 0:
        try:
            name = newest_checkpoint(folder_of_checkpoints).name
        except (CheckpointError, OSError) as problem:
            error = str(problem)
    main = json.loads(saver.agree("chosen", json.dumps([name, error]), first))
    if main[1]:
        raise CheckpointError(main[1])
    return folder_of_checkpoints.resolve() / str(main[0])


def _next_iteration(found: Found, saver: Saver) -> int | None:
    """Return the number after the highest one on any machine, so that the next save replaces no checkpoint."""
    own = ""
    if found.number is not None:
        numbers = [one.number for one in checkpoints_in(found.path.parent) if one.number is not None]
        own = str(max(numbers, default=found.number) + 1)
    highest = saver.agree("iteration", own, _highest)
    return int(highest) if highest else None


def _highest(numbers: Sequence[str]) -> str:
    return str(max(int(number) for number in numbers if number)) if numbers[0] else ""
