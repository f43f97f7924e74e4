"""What each rank has of its own in a checkpoint: random states, and the gradients of an open accumulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from accel.checkpoints import layout
from accel.checkpoints.catalogue import Found
from accel.checkpoints.files import regular_file
from accel.checkpoints.gradients import restore_gradients
from accel.checkpoints.model_files import open_weights
from accel.checkpoints.prepared import Prepared
from accel.checkpoints.random_states import States, from_file, reseed_for
from accel.checkpoints.strictness import Strictness
from accel.checkpoints.torch_file import read_torch_file
from accel_bigmodel.checkpoint_files import CheckpointFile
from accel_ops.random.state import restore_rng_states
from accel_state.errors import CheckpointError
from accel_state.logging import get_logger

logger = get_logger(__name__)


@dataclass
class RankState:
    """This rank's own part of a checkpoint, read but not restored.

    Attributes:
        found: The checkpoint.
        states: Random states of this rank, or of another where the number of ranks is not that of the save.
        step: Micro-batches into the accumulation at hand.
        has_gradients: Whether the accumulation at hand had begun.
        rank: This process.
        saved_by: Ranks that saved.
        world_size: Ranks that load.
        strict: What a misfit means.
    """

    found: Found
    states: States | None
    step: int | None
    has_gradients: bool
    rank: int
    saved_by: int
    world_size: int
    strict: Strictness

    @classmethod
    def read(
        cls,
        found: Found,
        names: Sequence[str],
        prepared: Prepared,
        rank: int,
        world_size: int,
        strict: Strictness,
    ) -> Self:
        """Read the random states, complaining where there are none for this rank."""
        ranks = layout.ranks_of_random_states(names)
        saved_by = found.manifest.world_size if found.manifest is not None else len(ranks)
        name = layout.random_states_file(rank if saved_by == world_size else min(ranks, default=0))
        states: States | None = None
        step: int | None = None
        if name not in names:
            strict.complain(
                f"`{name}`, the random states of rank {rank}, is missing in `{found.path}`, so that the numbers drawn "
                "from here on would differ."
            )
        with strict.loading(name, "the generators of this rank"):
            if name in names:
                content: Any = read_torch_file(regular_file(found.path, name))
                states, step = from_file(content, device_index=prepared.device_index, file_name=name)
        has_gradients = layout.gradients_file(0) in names
        return cls(found, states, step, has_gradients, rank, saved_by, world_size, strict)

    def restore(self, prepared: Prepared) -> None:
        """Restore gradients and random states; at another number of ranks, derive the latter anew."""
        if self.saved_by == self.world_size:
            self._restore_gradients(prepared)
            self._restore_generators()
            return
        if self.states is not None:
            reseed_for(self.states, rank=self.rank, world_size=self.world_size)
        logger.warning(
            "The checkpoint was saved by %d processes and is loaded by %d: the random states of every rank are "
            "derived anew from it%s.",
            self.saved_by,
            self.world_size,
            ", and the accumulation that was open begins anew" if self.has_gradients else "",
        )
        if self.has_gradients:
            self.step = 0

    def _restore_gradients(self, prepared: Prepared) -> None:
        if not self.has_gradients:
            return
        name = layout.gradients_file(self.rank)
        with self.strict.loading(name, "the gradients of this rank"):
            file = CheckpointFile(regular_file(self.found.path, name))
            with open_weights([file]) as gradients:
                restore_gradients(prepared.bare_models(), gradients)

    def _restore_generators(self) -> None:
        if self.states is None:
            return
        try:
            restore_rng_states(self.states)
        except CheckpointError as error:
            if self.strict.is_strict:
                raise
            self.strict.complain(str(error))
            restore_rng_states(self.states, strict=False)
