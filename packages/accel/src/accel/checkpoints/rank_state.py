"""The state of one rank in a checkpoint: its random states, and its gradients within an accumulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from accel.checkpoints.prepared import Prepared
from accel_backends.stepping.open_gradients import restore_gradients
from accel_checkpoint import file_names as names_of
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_files import CheckpointFile
from accel_checkpoint.random_states import States, from_file, reseed_for
from accel_checkpoint.reading.checked import checked_file
from accel_checkpoint.reading.listing import Found
from accel_checkpoint.reading.strictness import Strictness
from accel_checkpoint.reading.weights import open_weights
from accel_ops.random import restore_rng_states
from accel_state.errors import CheckpointError
from accel_state.logging import get_logger
from accel_state.mesh_layout import MeshLayout

logger = get_logger(__name__)
_STARTS_OVER = "the gradient accumulation starts over"


@dataclass
class RankState:
    """This rank's state in a checkpoint, read but not restored yet.

    Attributes:
        found: The checkpoint.
        states: Random states of the saving rank that read the same share of the data, or else of another rank.
        accumulation: State of the gradient accumulation; None if it is missing.
        is_own: Whether these are the states of a rank with the same share, and not only of rank 0.
        rank: This process.
        saved: Layout of the ranks that saved.
        layout: Layout of the ranks that load.
        strict: Whether a mismatch is an error or a warning.
    """

    found: Found
    states: States | None
    accumulation: Mapping[str, Any] | None
    is_own: bool
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
        """Read the random states; reports a mismatch if there are none for this rank."""
        ranks = names_of.ranks_of_random_states(names)
        manifest = found.manifest
        saved = MeshLayout.of_replicas(max(len(ranks), 1)) if manifest is None else manifest.layout
        source = min(ranks, default=0)
        if saved == layout:
            source = rank
        elif have_same_seeds(saved, layout):
            source = saved.rank_of_seed(layout.seed_index(rank))
        is_own = source == 0 or manifest is None or not manifest.is_of_rank_0_alone
        source = source if is_own else 0
        name = names_of.random_states_file(source)
        states: States | None = None
        accumulation: dict[str, Any] | None = None
        if name not in names:
            strict.report(
                f"`{name}`, the random states of rank {rank}, is missing in `{found.path}`, so random numbers would "
                "differ from here on."
            )
        with strict.loading(name, "the generators of this rank"):
            if name in names:
                content: Any = read_torch_file(checked_file(found.path, name))
                states, accumulation = from_file(content, device_index=prepared.device_index, file_name=name)
        if (
            accumulation is not None and "is_accumulating" not in accumulation
        ):  # written by Accelerate or an older release
            accumulation["is_accumulating"] = names_of.gradients_file(rank) in names
        return cls(found, states, accumulation, is_own, rank, saved, layout, strict)

    def restore(self, prepared: Prepared) -> None:
        """Restore the accumulation and the random states.

        If the number of data-parallel ranks has changed, the ranks draw new random numbers from seeds that are derived
        from the saved states. If the layout has changed in any way, an unfinished accumulation starts over.
        """
        manifest = self.found.manifest
        if manifest is not None:
            prepared.stepper.set_num_windows(manifest.step)
        is_alone = manifest is not None and manifest.is_of_rank_0_alone
        if self.saved == self.layout and not is_alone:
            self._restore_accumulation(prepared)
            self._restore_generators()
            return
        changes = []
        if have_same_seeds(self.saved, self.layout) and self.is_own:
            self._restore_generators()
        else:
            if self.states is not None:
                reseed_for(
                    self.states, rank=self.layout.seed_index(self.rank), world_size=self.layout.num_seeds
                )
            changes.append("every rank derives new random states from it")
        if is_alone:
            changes = ["it has the random states of rank 0 only, from which the other ranks derive new ones"]
        if self.was_accumulating:
            changes.append(_STARTS_OVER)
        self._reset_accumulation(prepared)
        if changes:
            logger.warning(
                "The checkpoint was saved by %s and is loaded by %s: %s.",
                "the main process alone" if is_alone else described(self.saved),
                described(self.layout),
                " and ".join(changes),
            )

    @property
    def was_accumulating(self) -> bool:
        """Whether the checkpoint was saved within an accumulation, and so has a file of gradients."""
        return self.accumulation is not None and bool(self.accumulation["is_accumulating"])

    def _restore_accumulation(self, prepared: Prepared) -> None:
        state = self.accumulation
        if state is None:
            self._reset_accumulation(prepared)
            return
        num_steps = prepared.stepper.num_steps
        if state.get("num_steps", num_steps) != num_steps:
            if self.was_accumulating:
                logger.warning(
                    "The checkpoint was saved within an accumulation of %s steps and is loaded into one of %s: %s.",
                    state["num_steps"],
                    num_steps,
                    _STARTS_OVER,
                )
            self._reset_accumulation(prepared)
            return
        restore_gradients(prepared.bare_models(), {})
        prepared.stepper.load_state_dict(state)
        if self.was_accumulating:
            self._restore_gradients(prepared)
        elif prepared.stepper.is_accumulating:
            logger.warning(
                "The checkpoint was saved within an accumulation, whose gradients are not in it: %s.",
                _STARTS_OVER,
            )
            prepared.stepper.reset()

    def _reset_accumulation(self, prepared: Prepared) -> None:
        """Reset the accumulation, and drop gradients that are left from before the load."""
        restore_gradients(prepared.bare_models(), {})
        prepared.stepper.reset()

    def _restore_gradients(self, prepared: Prepared) -> None:
        name = names_of.gradients_file(self.rank)
        with self.strict.loading(name, "the gradients of this rank"):
            file = CheckpointFile(checked_file(self.found.path, name))
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
            self.strict.report(str(error))
            restore_rng_states(self.states, strict=False)


def have_same_seeds(saved: MeshLayout, layout: MeshLayout) -> bool:
    """Whether two layouts have the same number of seeds and of pipeline stages."""
    return (saved.pp, saved.num_seeds) == (layout.pp, layout.num_seeds)


def described(layout: MeshLayout) -> str:
    """Describe a layout: the number of processes, and the mesh axes unless each process has the whole model."""
    used = [f"{axis}={size}" for axis, size in layout.sizes.items() if size > 1]
    is_plain = layout == MeshLayout.of_replicas(layout.world_size)
    processes = "1 process" if layout.world_size == 1 else f"{layout.world_size} processes"
    return processes + ("" if is_plain else f" ({', '.join(used)})")
