"""A folder of checkpoints, for any training loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_checkpoint.file_names import CHECKPOINTS, RANDOM_STATES
from accel_checkpoint.files import SavedFiles, read_json
from accel_checkpoint.formats.torch_files import read_torch_file, trusted_files
from accel_checkpoint.formats.weight_files import read_weights
from accel_checkpoint.listing import State, checkpoints_in, find_newest
from accel_checkpoint.manifest import Manifest, read_manifest
from accel_checkpoint.random_states import restore
from accel_checkpoint.ranks.agreement import DeferredError
from accel_checkpoint.saving.retention import Retention
from accel_checkpoint.saving.saver import Saver, checked_metrics
from accel_checkpoint.saving.transaction import Stage
from accel_state import PartialState, current_runtime
from accel_state.errors import CheckpointError, ConfigError


class CheckpointFolder:
    """A folder of atomic checkpoints, named `checkpoint_<step>`.

    Under `torchrun` or `accel launch`, create it and call its methods on every rank; the ranks save together.

    Args:
        folder: The folder of the checkpoints; the first save creates it.
        keep: How many checkpoints to keep, or a `Retention` that also keeps the best ones, every n-th or all pinned
            ones. Others are removed once a newer one is complete. None keeps all.

    Raises:
        ConfigError: If `keep` is less than 1.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int | Retention | None = None) -> None:
        if isinstance(keep, int) and keep < 1:
            raise ConfigError(f"`keep` must be at least 1, or None to keep all, got {keep}.")
        PartialState()
        self.path = Path(folder).resolve()
        self.retention = Retention(newest=keep) if isinstance(keep, int) else keep
        self._saver = Saver.of_run()

    def save(self, step: int, *, blocking: bool = True, metrics: Mapping[str, float] | None = None) -> Stage:
        """Return the stage of a new checkpoint; add files to it in a `with` block.

        An existing checkpoint of the same step is replaced once the new one is complete.

        Args:
            step: Training steps so far.
            blocking: Write the files before the block ends. Otherwise take a snapshot and write in the background; the
                stage's `handle` gives the outcome. An error that is not read there is raised by `wait`, or logged by
                the next call of another method.
            metrics: Values that `Retention` selects the best checkpoints by, such as a validation loss; rank 0's
                are used.

        Raises:
            CheckpointError: At the end of the block, if this save failed on any rank.
        """
        if step < 0:
            raise ConfigError(f"`step` must not be negative, got {step}.")
        is_main = self._saver.topology.rank == 0
        numbers = checked_metrics(metrics or {}, self.retention) if is_main else {}
        manifest = Manifest((), step=step, iteration=step, metrics=numbers)
        target = self.path / CHECKPOINTS.name(step)
        return self._saver.stage(target, manifest, retention=self.retention, blocking=blocking)

    def newest(self) -> SavedCheckpoint | None:
        """Return the complete checkpoint with the highest step, or None; the same on every rank.

        Checkpoints without a manifest, which other packages write, are left out.

        Raises:
            CheckpointError: On every rank, if rank 0 cannot read the folder. On this rank, if it cannot read the chosen
                checkpoint.
        """
        path = agree_on_newest(self.path, self._saver, allow_foreign=False)
        return None if path is None else SavedCheckpoint(path, trusted=True)

    def checkpoints(self) -> list[SavedCheckpoint]:
        """Return the complete checkpoints that this rank sees, sorted by step."""
        return [
            SavedCheckpoint(checkpoint.path, trusted=True)
            for checkpoint in checkpoints_in(self.path)
            if checkpoint.state is State.COMMITTED
        ]

    def wait(self) -> None:
        """Wait for the background save, if any.

        Raises:
            CheckpointError: If it failed and the error has not been raised yet.
        """
        self._saver.settle()


class SavedCheckpoint:
    """A complete checkpoint.

    Args:
        path: Its folder.
        trusted: Read its files also with a torch before 2.10, which they can make run code; see `trusted_files`. Files
            of a `CheckpointFolder` are trusted, since the run wrote them.

    Raises:
        CheckpointError: If it has no readable manifest.
    """

    def __init__(self, path: str | os.PathLike[str], *, trusted: bool = False) -> None:
        self.path = Path(path)
        self._is_trusted = trusted
        self.manifest: Manifest = read_manifest(self.path)

    @property
    def step(self) -> int:
        """Training steps at the time of the save."""
        return self.manifest.step

    @property
    def names(self) -> list[str]:
        """The file names, without the manifest."""
        return [entry.name for entry in self.manifest.files_here]

    def read(self, name: str) -> Any:
        """Return the content of a file that `Stage.write` wrote, with tensors on the CPU. Runs no code from the file.

        The file is compared with its digest first.

        Raises:
            CheckpointError: If the file is missing or damaged, or contains more than plain data.
        """
        path = self._files().path(name)
        if path.suffix == ".safetensors":
            return {name: tensor.clone() for name, tensor in read_weights(path).items()}  # the file may go
        if path.suffix == ".json":
            return read_json(path)
        with trusted_files(self._is_trusted):
            return read_torch_file(path)

    def restore_random_states(self) -> None:
        """Restore the states that `Stage.write_random_states` saved on this rank.

        Raises:
            CheckpointError: If the checkpoint has no such file for this rank.
        """
        name = RANDOM_STATES.name(current_runtime().topology.rank)
        content: Mapping[str, Any] = self.read(name)
        restore(content, file_name=name)

    def verify(self) -> None:
        """Read all files and compare their digests with the manifest.

        Raises:
            CheckpointError: If any file differs; names each one.
        """
        problems = self._files().problems(digests=True)
        if problems:
            raise CheckpointError(f"The checkpoint `{self.path}` is damaged. {' '.join(problems)}")

    def _files(self) -> SavedFiles:
        """Return its files, not compared yet."""
        return SavedFiles(self.path, self.manifest.files_here)

    def __repr__(self) -> str:
        return f"SavedCheckpoint({str(self.path)!r})"


def agree_on_newest(folder: Path, saver: Saver, *, allow_foreign: bool = True) -> Path | None:
    """Return the newest checkpoint that rank 0 sees in ``folder``, or None; the same on every rank.

    Waits for the running save, if any. Every rank must call it. See `find_newest`.

    Raises:
        CheckpointError: On every rank, if rank 0 cannot read the folder, or a checkpoint that may be the newest.
    """
    newest = None
    failed = f"No checkpoint was chosen in `{folder}`"
    with DeferredError(saver.agreement.agree_on, "newest", failed=failed) as deferred:
        saver.log_failure()
        if saver.topology.rank == 0:
            newest = find_newest(folder, allow_foreign=allow_foreign, report=True)
    name = deferred.agree("" if newest is None else newest.name)
    return folder / name if name else None
