"""All saves of one run, one at a time, blocking or in the background."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import accel_ops
from accel_checkpoint.files import Digest
from accel_checkpoint.manifest import Manifest
from accel_checkpoint.process_identity import new_token
from accel_checkpoint.progress import progress_bar
from accel_checkpoint.ranks.agreement import Agreement, agreement_of, first
from accel_checkpoint.saving.retention import Retention
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_checkpoint.saving.transaction import Stage
from accel_state import current_runtime
from accel_state.errors import AccelError, CheckpointError, ConfigError
from accel_state.topology import Topology
from accel_state.user_warnings import user_frame, warn_user

logger = logging.getLogger(__name__)
WAIT_S = 5.0
"""How long rank 0 waits for the other ranks to make the same call, if it can save without them."""
ALL_RANKS_WAIT_S = 45.0
"""How long it waits if it cannot."""
_POLL_S = 0.02
_tokens: set[str] = set()
"""Tokens of the saves of this process."""


def is_saved_here(token: str) -> bool:
    """Whether this process has taken part in the save with this token."""
    return token in _tokens


class Saver:
    """Runs the saves of one training run, to any folders. Every rank must make the same calls.

    Args:
        topology: This process's rank and node.
        agreement: Exchanges reports with the other ranks.
    """

    def __init__(self, *, topology: Topology, agreement: Agreement) -> None:
        self.topology = topology
        self.agreement = agreement
        self._lonely: dict[tuple[str, int], str] = {}
        self._in_background: Stage | None = None
        self._buffers = HostBuffers()

    @classmethod
    def of_run(cls) -> Self:
        """Return a saver of the current run; every rank must call it."""
        topology = current_runtime().topology
        agreement = agreement_of(
            rank=topology.rank, world_size=topology.world_size, gather=accel_ops.gather_object
        )
        return cls(topology=topology, agreement=agreement)

    def call(
        self, name: str, *, folder: str, step: int, number: int = 0, needs_all: bool
    ) -> tuple[str, int, str]:
        """Wait until every rank has made the same call, or until rank 0 stops waiting. Every rank must call it.

        If the last save in the background failed and the error has not been raised yet, it is logged first.

        Rank 0 waits a few seconds, but not again at a line of the script that other ranks did not reach, unless one
        reached it later. The other ranks read all verdicts of rank 0 in order, so that calls are never confused: a
        late rank receives the first verdict on its folder, at its step or a later one, and skips earlier verdicts.

        Args:
            name: The public name of the call.
            folder: Name of the folder to save to, the same on every rank; empty if it is numbered.
            step: Training steps so far.
            number: Number of the checkpoint.
            needs_all: Whether the call needs the other ranks.

        Returns:
            A token for the save and rank 0's ``number``; a text with the ranks that did not make the call, or empty.

        Raises:
            CheckpointError: With ``needs_all``, if a rank did not call within a minute, or a few seconds in debug mode.
        """
        self.log_failure()
        if self.topology.world_size == 1:
            return new_token(), number, ""
        called, frame = f"{name} {folder}", user_frame()
        line = frame.f_code.co_filename, frame.f_lineno
        is_lonely = line in self._lonely and not self.agreement.flag(self._lonely[line])
        wait_s = 0 if is_lonely and not needs_all else WAIT_S
        if needs_all and not current_runtime().debug:
            wait_s = ALL_RANKS_WAIT_S

        def merged(reports: Sequence[str]) -> str:
            missing = [r for r, text in enumerate(reports) if not text or (not wait_s and text != reports[0])]
            return json.dumps([called, step, new_token(), number, missing])

        while True:
            topic = self.agreement.next_topic("save_state or save_model")
            text = self.agreement.agree(topic, called, merged, wait_s=wait_s)
            called_there, step_there, token, number, missing = json.loads(text)
            if self.topology.rank == 0 or not missing or (called_there == called and step_there >= step):
                break
        self._lonely.pop(line, None)
        if missing and self.topology.rank == 0:
            self._lonely[line] = topic
        elif missing:
            self.agreement.flag(topic, is_set=True)
        ranks = (
            f"Rank{'s' if missing[1:] else ''} {', '.join(map(str, missing))} did not call `{name}` in time"
        )
        if missing and needs_all:
            raise CheckpointError(
                f"{ranks}. Every rank must call it, since the model is sharded: move it out of "
                "`if accelerator.is_main_process` or `if rank == 0`. If a rank has failed, see its output."
            )
        return token, number, ranks if missing else ""

    def stage(
        self,
        target: Path,
        manifest: Manifest,
        *,
        retention: Retention | None = None,
        blocking: bool = True,
        is_alone: bool = False,
    ) -> Stage:
        """Return the stage of a new checkpoint, which is saved when its `with` block ends.

        If the last save in the background failed and the error has not been raised yet, it is logged.

        Args:
            target: Final path of the checkpoint.
            manifest: Its fields besides files and ranks; an empty token is replaced here.
            retention: Which numbered checkpoints to keep; None keeps all.
            blocking: Write the files before the block ends. Otherwise take a snapshot and write in the background.
            is_alone: Save on this rank only.
        """
        self.log_failure()
        if not manifest.token:
            manifest = replace(manifest, token=self.agreement.agree_on("token", new_token(), first))
        _tokens.add(manifest.token)
        stage = Stage(
            target,
            manifest,
            topology=self.topology,
            agreement=Agreement() if is_alone else self.agreement,
            retention=retention,
            buffers=None if blocking else self._buffers,
        )
        self._in_background = None if blocking else stage
        return stage

    def settle(self) -> None:
        """Wait for the running save, if any; rank 0 shows a progress bar if that takes more than a few seconds.

        Raises:
            CheckpointError: If it failed and the error has not been raised yet.
        """
        stage = self._in_background
        if stage is None or stage.handle is None:
            return
        handle, is_main = stage.handle, self.topology.rank == 0
        try:
            with progress_bar(
                f"Saving {stage.target.name}", is_shown=is_main and not handle.done()
            ) as advance:
                num_bytes = Digest.num_bytes_of_all
                while advance is not None and not handle.done():
                    time.sleep(_POLL_S)
                    before, num_bytes = num_bytes, Digest.num_bytes_of_all
                    advance(num_bytes - before)
            handle.settle()
        finally:
            if handle.done():
                self._in_background = None

    def log_failure(self) -> None:
        """Wait for the running save, if any; log its error if it failed and the error has not been raised yet."""
        stage = self._in_background
        try:
            self.settle()
        except AccelError as error:
            logger.error("Saving `%s` in the background failed: %s", stage and stage.target, error)

    def release_memory(self) -> None:
        """Release the memory of the last snapshot, unless it is still being written."""
        stage = self._in_background
        if stage is None or stage.handle is None or stage.handle.done():
            self._buffers.release()


def checked_metrics(metrics: Mapping[str, Any], retention: Retention | None) -> dict[str, float]:
    """Return the finite metrics of a checkpoint as numbers.

    Warns if the metric of `retention` is missing: this checkpoint then never counts as one of the best.

    Raises:
        ConfigError: If a value is not a number, or the metrics have no names.
    """
    if not isinstance(metrics, Mapping):
        raise ConfigError(f"`metrics` must be a dict of numbers by name, got {metrics!r}.")
    numbers = {}
    for name, value in metrics.items():
        try:
            # A loss may have a graph; torch warns when such a tensor becomes a number.
            numbers[str(name)] = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ConfigError(f"`metrics` needs one number for `{name}`, got {value!r}.") from error
    finite = {name: number for name, number in numbers.items() if math.isfinite(number)}
    if retention is not None and retention.best is not None and retention.metric not in finite:
        warn_user(
            f"This checkpoint has no finite value of `{retention.metric}`, so it is not kept among the best. Pass "
            f"`metrics={{'{retention.metric}': ...}}` when you save.",
            main_process_only=True,
        )
    return finite
