"""The place where a checkpoint is put together before it is saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from accel_checkpoint.random_states import captured
from accel_checkpoint.saving.handle import SaveHandle
from accel_checkpoint.saving.pending_files import PendingFile, pending_file
from accel_checkpoint.saving.transaction import Description, Transaction
from accel_state.errors import CheckpointError


class Stage:
    """A checkpoint before it is saved; `CheckpointFolder.save` makes one.

    The checkpoint is saved when the `with` block ends, on all ranks or on none: an error in the block of any rank
    raises `CheckpointError` on the others.

    Args:
        transaction: The save.
        finish: Saves what was put in, and returns the handle of a save that goes on behind the loop.
    """

    def __init__(
        self, transaction: Transaction, *, finish: Callable[[Transaction], SaveHandle | None]
    ) -> None:
        self._transaction = transaction
        self._finish = finish
        self.handle: SaveHandle | None = None
        """Of a save that goes on behind the loop; there once the block has ended."""

    @property
    def path(self) -> Path:
        """The temporary folder. What is written there by other means is part of the checkpoint too; see `wrote`."""
        return self._transaction.staging.path

    @property
    def target(self) -> Path:
        """Where the checkpoint will be."""
        return self._transaction.request.target

    @property
    def place(self) -> int:
        """Which file system this rank writes to: 0 is the one of rank 0, others are numbered like their machines."""
        return self._transaction.place

    @property
    def is_owner(self) -> bool:
        """Whether this rank publishes the files of its file system."""
        return self._transaction.is_owner

    def write(self, name: str, content: Any, *, rank: int | None = 0) -> None:
        """Put a file into the checkpoint.

        It is written when the block ends; change nothing in `content` until then.

        Args:
            name: Of the file: `.safetensors` for tensors by name, `.json` for plain JSON, `.bin`, `.pt`, `.pth` or
                `.pkl` for what `torch.save` writes (tensors, numbers, texts and containers of these).
            content: What is in it.
            rank: Which rank writes it, for what all ranks have alike; None: this one, for what each has of its own,
                under a name that no other rank uses.

        Raises:
            ConfigError: If the name has another ending.
            CheckpointError: If the content is more than plain data, which could not be loaded safely.
        """
        if rank is None or rank == self._transaction.topology.rank:
            self.add(pending_file(name, content))

    def write_random_states(self) -> None:
        """Put the states of this rank's generators (Python, NumPy, torch, the device) into the checkpoint."""
        name, content = captured(rank=self._transaction.topology.rank)
        self.write(name, content, rank=None)

    def wrote(self, *names: str) -> None:
        """Say which files this rank has written into `path` by other means, such as an engine's own save.

        This rank reads them once more for their digests. Those that nobody names are left to rank 0, one after the
        other.

        Args:
            *names: Relative to `path`, with `/` between parts.
        """
        self._transaction.foreign_files.extend(names)

    def add(self, *files: PendingFile) -> None:
        """Put files into the checkpoint that this rank writes."""
        self._transaction.files.extend(files)

    def gather(self, collect: Callable[[Stage], Sequence[PendingFile]]) -> None:
        """Add what `collect` returns; if it raises, every rank learns of that when the block ends."""
        self._transaction.gather(lambda: list(collect(self)))

    def describe(self, description: Description) -> None:
        """Say what the manifest is to tell of the content."""
        self._transaction.description = description

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._transaction)
            self._transaction.begin()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            with self._transaction:
                self.handle = self._finish(self._transaction)
            return
        self._transaction.fail(error)
        with (
            suppress(CheckpointError),
            self._transaction,
        ):  # the error of this rank's own block goes on, as it is
            self._transaction.finish()
