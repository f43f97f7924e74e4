"""What each rank has of its own in a checkpoint: random states, and the gradients of an open accumulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from accel.checkpoints.prepared import Prepared
from accel_backends.stepping.open_gradients import restore_gradients
from accel_checkpoint import file_names as names_of
from accel_checkpoint.files import regular_file
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_files import CheckpointFile
from accel_checkpoint.random_states import States, from_file, reseed_for
from accel_checkpoint.reading.listing import Found
from accel_checkpoint.reading.strictness import Strictness
from accel_checkpoint.reading.weights import open_weights
from accel_ops.random.state import restore_rng_states
from accel_state.errors import CheckpointError
from accel_state.logging import get_logger
from accel_state.mesh_layout import MeshLayout

logger = get_logger(__name__)
_BEGINS_ANEW = "the accumulation that was open begins anew"


@dataclass
class RankState:
    """This rank's own part of a checkpoint, read but not restored.

    Attributes:
        found: The checkpoint.
        states: Random states of the rank that had this one's place among the data; of any rank, if nobody had.
        accumulation: Where the accumulation stood; None where that is not known.
        rank: This process.
        saved: How the ranks that saved were arranged.
        layout: How those that load are.
        strict: What a misfit means.
    """

    found: Found
    states: States | None
    accumulation: Mapping[str, Any] | None
    rank: int
    saved: MeshLayout
    layout: MeshLayout
    strict: Strictness

    @classmethod
    def read(
        cls,
        found: Found,
        names: Sequence[str],
        prepared: Prepared,
        rank: int,
        layout: MeshLayout,
        strict: Strictness,
    ) -> Self:
        """Read the random states, complaining where there are none for this rank."""
        ranks = names_of.ranks_of_random_states(names)
        manifest = found.manifest
        saved = MeshLayout.of_replicas(max(len(ranks), 1)) if manifest is None else manifest.layout
        source = min(ranks, default=0)
        if saved == layout:
            source = rank
        elif have_same_seeds(saved, layout):
            source = saved.rank_of_seed(layout.seed_index(rank))
        name = names_of.random_states_file(source)
        states: States | None = None
        accumulation: dict[str, Any] | None = None
        if name not in names:
            strict.complain(
                f"`{name}`, the random states of rank {rank}, is missing in `{found.path}`, so that the numbers drawn "
                "from here on would differ."
            )
        with strict.loading(name, "the generators of this rank"):
            if name in names:
                content: Any = read_torch_file(regular_file(found.path, name))
                states, accumulation = from_file(content, device_index=prepared.device_index, file_name=name)
        if accumulation is not None and "is_accumulating" not in accumulation:  # the peer's, or an older one
            accumulation["is_accumulating"] = names_of.gradients_file(rank) in names
        return cls(found, states, accumulation, rank, saved, layout, strict)

    def restore(self, prepared: Prepared) -> None:
        """Restore the accumulation and the random states.

        Another number of ranks that read different data draws new random numbers, derived from the saved ones.
        On any other layout an accumulation begins anew.
        """
        if self.found.manifest is not None:
            prepared.stepper.set_num_windows(self.found.manifest.step)
        if self.saved == self.layout:
            self._restore_accumulation(prepared)
            self._restore_generators()
            return
        changes = []
        if have_same_seeds(self.saved, self.layout):
            self._restore_generators()
        else:
            if self.states is not None:
                reseed_for(
                    self.states, rank=self.layout.seed_index(self.rank), world_size=self.layout.num_seeds
                )
            changes.append("the random states of every rank are derived anew from it")
        if self._was_accumulating:
            changes.append(_BEGINS_ANEW)
        self._begin_anew(prepared)
        if changes:
            logger.warning(
                "The checkpoint was saved by %s and is loaded by %s: %s.",
                described(self.saved),
                described(self.layout),
                " and ".join(changes),
            )

    @property
    def _was_accumulating(self) -> bool:
        return self.accumulation is not None and bool(self.accumulation["is_accumulating"])

    def _restore_accumulation(self, prepared: Prepared) -> None:
        state = self.accumulation
        if state is None:
            self._begin_anew(prepared)
            return
        num_steps = prepared.stepper.num_steps
        if state.get("num_steps", num_steps) != num_steps:
            if self._was_accumulating:
                logger.warning(
                    "The checkpoint was saved within an accumulation of %s steps and is loaded into one of %s: %s.",
                    state["num_steps"],
                    num_steps,
                    _BEGINS_ANEW,
                )
            self._begin_anew(prepared)
            return
        restore_gradients(prepared.bare_models(), {})
        prepared.stepper.load_state_dict(state)
        if self._was_accumulating:
            self._restore_gradients(prepared)
        elif prepared.stepper.is_accumulating:
            logger.warning(
                "The checkpoint was saved within an accumulation, whose gradients are not in it: %s.",
                _BEGINS_ANEW,
            )
            prepared.stepper.reset()

    def _begin_anew(self, prepared: Prepared) -> None:
        """Forget the gradients of what was trained before, too."""
        restore_gradients(prepared.bare_models(), {})
        prepared.stepper.reset()

    def _restore_gradients(self, prepared: Prepared) -> None:
        name = names_of.gradients_file(self.rank)
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


def have_same_seeds(saved: MeshLayout, layout: MeshLayout) -> bool:
    """Whether as many ranks draw different random numbers, in as many pipeline stages."""
    return (saved.pp, saved.num_seeds) == (layout.pp, layout.num_seeds)


def described(layout: MeshLayout) -> str:
    """Return how many processes there are, and how they are arranged unless each has the whole model."""
    used = [f"{axis}={size}" for axis, size in layout.sizes.items() if size > 1]
    is_plain = layout == MeshLayout.of_replicas(layout.world_size)
    return f"{layout.world_size} processes" + ("" if is_plain else f" ({', '.join(used)})")
