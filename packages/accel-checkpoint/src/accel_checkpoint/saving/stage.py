"""The stage: collects the files of a checkpoint until it is saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from accel_checkpoint.random_states import captured
from accel_checkpoint.saving.handle import SaveHandle
from accel_checkpoint.saving.pending_files import CollectiveFile, MergedFile, PendingFile, pending_file
from accel_checkpoint.saving.staging import Staging
from accel_checkpoint.saving.transaction import (
    Content,
    Description,
    Part,
    Rounds,
    begin,
    commit,
    undone_after_error,
    write,
)
from accel_state.errors import CheckpointError


class Stage:
    """Collects the files of a new checkpoint; created by `CheckpointFolder.save`.

    The checkpoint is saved when the `with` block ends, on all ranks or on none. An error in the block of one rank
    raises `CheckpointError` on the others.

    Args:
        rounds: The rounds of the save.
        finish: Completes the save; returns a handle if the save runs in the background.
    """

    def __init__(
        self, rounds: Rounds, *, finish: Callable[[Content, Part, Rounds], SaveHandle | None]
    ) -> None:
        self._rounds, self._finish = rounds, finish
        self._part = Part(Staging(self.target, token=rounds.request.token), place=0, is_owner=False)
        self._files: list[PendingFile] = []
        self._collective: list[CollectiveFile] = []
        self._merged: list[MergedFile] = []
        self._foreign: list[str] = []
        self._is_collective = False
        self._description = Description()
        self.handle: SaveHandle | None = None
        """Handle of a save in the background, set when the block ends."""

    @property
    def path(self) -> Path:
        """The temporary folder. Files written there by other means become part of the checkpoint too; see `wrote`."""
        return self._part.staging.path

    @property
    def target(self) -> Path:
        """Final path of the checkpoint."""
        return self._rounds.request.target

    @property
    def place(self) -> int:
        """The file system that this rank writes to: 0 for rank 0's, otherwise the rank of the node."""
        return self._part.place

    @property
    def is_owner(self) -> bool:
        """Whether this rank commits the files on its file system."""
        return self._part.is_owner

    def write(self, name: str, content: Any, *, rank: int | None = 0) -> None:
        """Add a file to the checkpoint.

        The file is written when the block ends. Do not change ``content`` before that.

        Args:
            name: File name. Its suffix selects the format: `.safetensors` for a dict of tensors, `.json`, or `.bin`,
                `.pt`, `.pth` and `.pkl` for `torch.save` (tensors, numbers, strings and containers of these).
            content: Content of the file.
            rank: The rank that writes content that all ranks share. Pass None for content of this rank alone, under a
                name that no other rank uses.

        Raises:
            ConfigError: If the name has another suffix.
            CheckpointError: If the content is not plain data, since it could not be loaded safely.
        """
        if rank is None or rank == self._rounds.topology.rank:
            self.add(pending_file(name, content))

    def write_random_states(self) -> None:
        """Add the states of this rank's random generators (Python, NumPy, torch, the device) to the checkpoint."""
        name, content = captured(rank=self._rounds.topology.rank)
        self.write(name, content, rank=None)

    def wrote(self, *names: str) -> None:
        """Report files that this rank has written to `path` by other means, such as an engine's own save.

        This rank reads them again to compute their digests. Rank 0 does so, one by one, for files that no rank reports.

        Args:
            *names: Relative to `path`, separated by `/`.
        """
        self._foreign.extend(names)

    def add(self, *files: PendingFile) -> None:
        """Add files that this rank writes."""
        self._files.extend(files)

    def add_merged(self, *files: MergedFile) -> None:
        """Add files that rank 0 writes when all ranks have written theirs."""
        self._merged.extend(files)

    def add_collective(self, *files: CollectiveFile) -> None:
        """Add files that all ranks write together; call it in `gather`, with ``is_collective``."""
        self._collective.extend(files)

    def gather(
        self, collect: Callable[[Stage], Sequence[PendingFile]], *, is_collective: bool = False
    ) -> None:
        """Add the files that ``collect`` returns. If it raises, every rank raises when the block ends.

        Args:
            collect: Returns the files of this rank; called at once.
            is_collective: Whether it may call `add_collective`; the same on every rank.
        """
        self._is_collective = self._is_collective or is_collective
        with self._rounds.recording_failure():
            if self._rounds.failure is None or self._rounds.topology.world_size > 1:
                self._files += collect(
                    self
                )  # even after a failure: the other ranks may wait in its collectives

    def describe(self, description: Description) -> None:
        """Set what the manifest records about the content."""
        self._description = description

    def __enter__(self) -> Self:
        self._part = begin(self._part.staging, self._rounds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        content = Content(
            self._files,
            self._collective,
            self._merged,
            self._foreign,
            self._is_collective,
            self._description,
        )
        if error is None:
            with undone_after_error(self._part, self._rounds):
                self.handle = self._finish(content, self._part, self._rounds)
            return
        self._rounds.fail(error)
        # This rank raises the error of its own block.
        with suppress(CheckpointError), undone_after_error(self._part, self._rounds):
            written = write(content, self._part, self._rounds, num_threads=1)
            commit(written, content, self._part, self._rounds)
