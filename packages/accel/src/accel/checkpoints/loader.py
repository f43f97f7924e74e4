"""Load a checkpoint on all ranks: they agree on which, check it, and tell each other how it went."""

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
    """Load a checkpoint. Every rank must call it; blocks until all have loaded.

    Returns:
        Number of the next checkpoint; None where they have no numbers.

    Raises:
        CheckpointError: On every rank, if it failed on any.
    """
    folder = _agree_on_folder(input_dir, folder_of_checkpoints, saver)
    topology = saver.topology
    if topology.num_nodes > 1:
        # On a machine with a disk of its own, a part may be of a later save than the whole: it was killed between them.
        main = saver.agree("token", token_of(folder) if topology.rank == 0 else "", first)
        folder = part_of_save(folder, main) if main else folder
    found: Found | None = None
    with _Together(saver, "checked", folder) as together:
        # One process of each machine reads everything; the others only see that it is there.
        found = check_loadable(folder, verify=verify and topology.local_rank == 0)
    together.check()
    assert found is not None
    with _Together(saver, "loaded", folder) as together:
        models = list(prepared.models)
        for hook in hooks:
            hook(models, str(found.path))
        Restoration(
            found, prepared, topology.rank, layout, Strictness(is_strict), restore_loaders=restore_loaders
        ).run(models)
    together.check()
    return _next_iteration(found, saver)


def check_load_arguments(load_kwargs: Mapping[str, Any] | None, others: Mapping[str, Any]) -> None:
    """Refuse arguments that would have no effect, or that ask for unpickling.

    Raises:
        ConfigError: Naming the argument.
    """
    given = dict(load_kwargs or {})
    if given.pop("weights_only", True) is not True:
        raise ConfigError("`weights_only=False` is not done: a checkpoint could run code. Leave it out.")
    given.pop("map_location", None)
    unknown = sorted({*given, *others} - {"map_location"})
    if unknown:
        raise ConfigError(
            f"`load_state` knows no argument `{unknown[0]}`. Known: verify, strict, restore_loaders, load_kwargs."
        )


class _Together:
    """Keep this rank's error until the others have been told."""

    def __init__(self, saver: Saver, stage: str, folder: Path) -> None:
        self._saver, self._stage, self._folder = saver, stage, folder
        self._error: Exception | None = None

    def __enter__(self) -> _Together:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        # Ctrl-C and the like end this process; what else it is, the other ranks are told first.
        self._error = error if isinstance(error, Exception) else None
        return self._error is not None

    def check(self) -> None:
        """Raise this rank's error, or say which rank failed."""
        own = "" if self._error is None else reason_of(self._error)
        failed = self._saver.agree(self._stage, own, _failures)
        if self._error is not None:
            raise self._error
        if failed:
            raise CheckpointError(f"The checkpoint `{self._folder}` was not loaded ({failed}).")


def _failures(reports: Sequence[str]) -> str:
    return "; ".join(f"rank {rank}: {report}" for rank, report in enumerate(reports) if report)


def _agree_on_folder(input_dir: Path | None, folder_of_checkpoints: Path | None, saver: Saver) -> Path:
    """Return the folder that is loaded: the given one, or the newest that the main process sees."""
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
    """Return the number after the highest on any machine, so that going on never meets an existing one."""
    own = ""
    if found.number is not None:
        numbers = [one.number for one in checkpoints_in(found.path.parent) if one.number is not None]
        own = str(max(numbers, default=found.number) + 1)
    highest = saver.agree("iteration", own, _highest)
    return int(highest) if highest else None


def _highest(numbers: Sequence[str]) -> str:
    return str(max(int(number) for number in numbers if number)) if numbers[0] else ""
