"""The state of one rank in a checkpoint: its random states, and its gradients within an accumulation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from accel.checkpoints.items import SavedRun, StateItem
from accel_backends.checkpoint_formats.protocol import SaveChoices
from accel_backends.stepping.open_gradients import open_gradients, restore_gradients
from accel_checkpoint.file_names import (
    gradients_file,
    random_states_file,
    ranks_of_random_states,
)
from accel_checkpoint.formats.weight_files import read_weights
from accel_checkpoint.random_states import States, from_file, reseed_for, to_file
from accel_checkpoint.saving.pending_files import PendingFile, SafetensorsFile, TorchFile
from accel_ops.random import capture_rng_states, restore_rng_states
from accel_state.errors import CheckpointError
from accel_state.logging import get_logger
from accel_state.mesh_layout import MeshLayout

logger = get_logger(__name__)
_GRADIENTS = "the gradients of this rank"
_STARTS_OVER = "the gradient accumulation starts over"


@dataclass(frozen=True)
class RankState:
    """What a checkpoint has for one rank.

    Attributes:
        states: Random states of the saving rank that read the same share of the data, or else of another rank.
        accumulation: State of the gradient accumulation; None if it is missing.
        gradients: Gradients of an unfinished accumulation in the same layout, mapped from their file.
    """

    states: States | None = None
    accumulation: Mapping[str, Any] | None = None
    gradients: Mapping[str, Any] | None = None

    @property
    def was_accumulating(self) -> bool:
        """Whether the checkpoint was saved within an accumulation, and so has a file of gradients."""
        return self.accumulation is not None and bool(self.accumulation["is_accumulating"])


class RankItem(StateItem):
    """This rank. It is the last item, so that loading the others does not draw random numbers."""

    kind = "rank"

    @staticmethod
    def file_of(index: int) -> str:
        return random_states_file(index)

    @staticmethod
    def indexes_in(saved: SavedRun) -> Collection[int]:
        return ranks_of_random_states(saved.files.names)

    @property
    def label(self) -> str:
        return "the generators of this rank"

    def report_missing(self, saved: SavedRun) -> None:
        """Report that a checkpoint has no random states for this rank."""
        name = random_states_file(self._source(saved)[0])
        note = ", so random numbers would differ from here on"
        saved.report_missing(f"`{name}`, the random states of rank {self.index},", note=note)

    def file_in(self, saved: SavedRun) -> str | None:
        """Return the file of the rank that saved the same share of the data, or of the first one."""
        name = random_states_file(self._source(saved)[0])
        return name if name in saved.files.names else None

    def save(self, choices: SaveChoices) -> list[PendingFile]:
        """Return this rank's gradients within an accumulation, and its random states as they are now."""
        run, files = self.run, list[PendingFile]()
        if run.stepper.is_accumulating:
            gradients = open_gradients(run.bare_models)
            # The gradients of a scaled loss may overflow.
            files.append(SafetensorsFile(gradients_file(self.index), gradients, {}, is_trained=False))
        accumulation, device_index = run.stepper.state_dict(), run.device_index
        states = to_file(capture_rng_states(), accumulation=accumulation, device_index=device_index)
        return [*files, TorchFile(self.file, states)]

    def read(self, saved: SavedRun, name: str) -> RankState:
        """Return the random states and the accumulation."""
        states, accumulation = from_file(
            saved.content(name), device_index=self.run.device_index, file_name=name
        )
        if "is_accumulating" not in accumulation:  # written by Accelerate or an older release
            accumulation["is_accumulating"] = gradients_file(self.index) in saved.files.names
        state = RankState(states, accumulation)
        if state.was_accumulating and saved.has_same_ranks:
            gradients = gradients_file(self.index)
            with saved.strict.loading(gradients, _GRADIENTS):
                state = replace(state, gradients=read_weights(saved.files.path(gradients)))
        return state

    def load(self, content: RankState | None, saved: SavedRun) -> None:
        """Restore the accumulation and the random states.

        If the number of data-parallel ranks has changed, the ranks draw new random numbers from seeds that are derived
        from the saved states. If the layout has changed in any way, an unfinished accumulation starts over.
        """
        state, manifest, stepper = content or RankState(), saved.found.manifest, self.run.stepper
        if manifest is not None:
            stepper.set_num_windows(manifest.step)
        restore_gradients(self.run.bare_models, {})  # drops those that are left from before the load
        if saved.has_same_ranks:
            self._restore_accumulation(state, saved)
            _restore_generators(state, saved)
            return
        stepper.reset()
        changes = []
        if _have_same_seeds(saved.saved_layout, saved.layout) and self._source(saved)[1]:
            _restore_generators(state, saved)
        else:
            if state.states is not None:
                seed_index, num_seeds = saved.layout.seed_index(self.index), saved.layout.num_seeds
                reseed_for(state.states, rank=seed_index, world_size=num_seeds)
            changes.append("every rank derives new random states from it")
        if saved.is_of_rank_0_alone:
            changes = ["it has the random states of rank 0 only, from which the other ranks derive new ones"]
        if state.was_accumulating:
            changes.append(_STARTS_OVER)
        if changes:
            logger.warning(
                "The checkpoint was saved by %s and is loaded by %s: %s.",
                "the main process alone" if saved.is_of_rank_0_alone else _described(saved.saved_layout),
                _described(saved.layout),
                " and ".join(changes),
            )

    def _source(self, saved: SavedRun) -> tuple[int, bool]:
        """Return the rank whose states to read, and whether they are of the same share, not only of rank 0."""
        if saved.has_same_ranks:
            return self.index, True
        source = min(ranks_of_random_states(saved.files.names), default=0)
        if saved.saved_layout == saved.layout:
            source = self.index
        elif _have_same_seeds(saved.saved_layout, saved.layout):
            source = saved.saved_layout.rank_of_seed(saved.layout.seed_index(self.index))
        is_own = source == 0 or not saved.is_of_rank_0_alone
        return source if is_own else 0, is_own

    def _restore_accumulation(self, state: RankState, saved: SavedRun) -> None:
        stepper, accumulation = self.run.stepper, state.accumulation
        if accumulation is None:
            stepper.reset()
            return
        num_steps = stepper.num_steps
        if accumulation.get("num_steps", num_steps) != num_steps:
            if state.was_accumulating:
                logger.warning(
                    "The checkpoint was saved within an accumulation of %s steps and is loaded into one of %s: %s.",
                    accumulation["num_steps"],
                    num_steps,
                    _STARTS_OVER,
                )
            stepper.reset()
            return
        stepper.load_state_dict(accumulation)
        if state.gradients is not None:
            with saved.strict.loading(gradients_file(self.index), _GRADIENTS):
                restore_gradients(self.run.bare_models, state.gradients)
        elif not state.was_accumulating and stepper.is_accumulating:
            logger.warning(
                "The checkpoint was saved within an accumulation, whose gradients are not in it: %s.",
                _STARTS_OVER,
            )
            stepper.reset()


def _restore_generators(state: RankState, saved: SavedRun) -> None:
    if state.states is None:
        return
    try:
        restore_rng_states(state.states)
    except CheckpointError as error:
        if saved.strict.is_strict:
            raise
        saved.strict.report(str(error))
        restore_rng_states(state.states, strict=False)


def _have_same_seeds(saved: MeshLayout, layout: MeshLayout) -> bool:
    """Whether two layouts have the same number of seeds and of pipeline stages."""
    return (saved.pp, saved.num_seeds) == (layout.pp, layout.num_seeds)


def _described(layout: MeshLayout) -> str:
    """Describe a layout: the number of processes, and the mesh axes unless each process has the whole model."""
    used = [f"{axis}={size}" for axis, size in layout.sizes.items() if size > 1]
    is_plain = layout == MeshLayout.of_replicas(layout.world_size)
    processes = "1 process" if layout.world_size == 1 else f"{layout.world_size} processes"
    return processes + ("" if is_plain else f" ({', '.join(used)})")
