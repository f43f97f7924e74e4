"""The objects of a run, and a checkpoint that is loaded into them: the saving ranks and the formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Self

import torch
from torch import nn

from accel_backends import Precision, Strategy
from accel_backends.checkpoint_formats.protocol import FORMATS, CheckpointFormat, refuse_local_states
from accel_backends.stepping.stepper import Stepper
from accel_checkpoint.file_names import ACCUMULATED_GRADIENTS, RANDOM_STATES
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_files import read_weights
from accel_checkpoint.listing import Found
from accel_checkpoint.random_states import States, from_file, reseed_for
from accel_checkpoint.strictness import Strictness
from accel_ops.random import restore_rng_states
from accel_state.logging import get_logger
from accel_state.mesh_layout import MeshLayout

logger = get_logger(__name__)
GRADIENTS = "the gradients of this rank"
_STARTS_OVER = "the gradient accumulation starts over"
_NEW_ORDER = (
    "epochs that begin later have another order than in a run without the change "
    "(`DataLoaderConfiguration(use_seedable_sampler=True)` keeps it)"
)


@dataclass(frozen=True)
class RunObjects:
    """The objects of a run that have a state, in their order of preparation.

    Attributes:
        strategy: Saves and loads the states of models and optimizers.
        precision: Saves and loads the state of the gradient scaler.
        stepper: Resumes the gradient accumulation.
        accumulation: The state of the gradient accumulation, before anything is loaded.
        form: The format of saved models and optimizers.
        rank: This process.
        device_index: Index of this rank's device on its machine.
        models: The users' models, without wrappers.
        optimizers: Prepared optimizers.
        schedulers: Prepared schedulers.
        loaders: Prepared loaders, by number.
        custom: Objects registered for checkpointing.
        resumes_loaders: Whether loads resume loaders in the middle of their epoch by default.
    """

    strategy: Strategy
    precision: Precision
    stepper: Stepper
    accumulation: Mapping[str, Any]
    form: CheckpointFormat
    rank: int
    device_index: int
    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    schedulers: Sequence[Any]
    loaders: Mapping[int, Any]
    custom: Sequence[Any]
    resumes_loaders: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SavedFormats:
    """The format of each model and optimizer in a checkpoint, by index."""

    models: dict[int, CheckpointFormat] = field(default_factory=dict)
    optimizers: dict[int, CheckpointFormat] = field(default_factory=dict)

    @property
    def are_open(self) -> bool:
        """Whether opening a model or an optimizer opens all its files, so that another save may replace them then."""
        return all(form.opens_all for form in (*self.models.values(), *self.optimizers.values()))


def saved_formats(
    names: Collection[str],
    *,
    form: CheckpointFormat,
    saved_as: str = "",
    num_models: int,
    num_optimizers: int,
) -> SavedFormats:
    """Return the formats of the models and optimizers in a checkpoint.

    Formats are tried in turn until all prepared objects have a file: first the format in the manifest, then the other
    formats sorted by name, so that the order is the same on every rank.

    Args:
        names: The files of the checkpoint.
        form: The format of the run, tried first if the checkpoint has no manifest.
        saved_as: The format that the manifest names; empty if there is none.
        num_models: Number of prepared models.
        num_optimizers: Number of prepared optimizers.

    Raises:
        UnknownNameError: If no format is called ``saved_as``.
        CheckpointError: If the files are of a format that was removed.
    """
    saved = SavedFormats()
    for candidate in _in_turn(form, saved_as):
        models, optimizers = candidate.indexes_in(names)
        for index in models:
            saved.models.setdefault(index, candidate)
        for index in optimizers:
            saved.optimizers.setdefault(index, candidate)
        if len(saved.models) >= num_models and len(saved.optimizers) >= num_optimizers:
            break
    else:
        refuse_local_states(names)
    return saved


def _in_turn(form: CheckpointFormat, saved_as: str) -> Iterator[CheckpointFormat]:
    first = form if saved_as in ("", form.name) else FORMATS.get(saved_as)()
    yield first
    yield from (FORMATS.get(name)() for name in FORMATS.names() if name != first.name)


@dataclass
class SavedRun:
    """A checkpoint that is being loaded.

    Attributes:
        found: The checkpoint.
        files: Its files.
        formats: The formats of its models and optimizers.
        rank: This process.
        layout: Layout of the processes that load it.
        strict: Whether a mismatch is an error or a warning.
        strict_models: The same for the weights of models.
        restore_loaders: Whether loaders resume in the middle of an epoch.
        key_map: Prefixes of names in the models, by the prefixes in the checkpoint.
        names_in_file: Names of weights in the checkpoint, by those in the models, as far as `key_map` changes them.
        restarted_loaders: Loaders whose epoch starts over although it was saved in the middle.
    """

    found: Found
    files: SavedFiles
    formats: SavedFormats
    rank: int
    layout: MeshLayout
    strict: Strictness
    strict_models: Strictness
    restore_loaders: bool
    key_map: Mapping[str, str]
    names_in_file: dict[str, str] = field(default_factory=dict)
    restarted_loaders: list[str] = field(default_factory=list)

    @cached_property
    def saved_layout(self) -> MeshLayout:
        """Layout of the processes that saved it."""
        if self.found.manifest is not None:
            return self.found.manifest.layout
        return MeshLayout.of_replicas(max(len(RANDOM_STATES.numbers(self.files.names)), 1))

    @cached_property
    def is_of_rank_0_alone(self) -> bool:
        """Whether rank 0 saved it without the states of the other ranks."""
        return self.found.manifest is not None and self.found.manifest.is_of_rank_0_alone

    @cached_property
    def has_same_ranks(self) -> bool:
        """Whether the ranks have the layout of the saving ranks, and each of these saved its state."""
        return self.saved_layout == self.layout and not self.is_of_rank_0_alone

    @cached_property
    def has_same_seeds(self) -> bool:
        """Whether as many seeds and pipeline stages were in the saved layout."""
        saved, layout = self.saved_layout, self.layout
        return (saved.pp, saved.num_seeds) == (layout.pp, layout.num_seeds)

    @cached_property
    def rank_source(self) -> tuple[int, bool]:
        """The rank whose random states this one reads, and whether it read the same share of the data."""
        if self.has_same_ranks:
            return self.rank, True
        source = min(RANDOM_STATES.numbers(self.files.names), default=0)
        if self.saved_layout == self.layout:
            source = self.rank
        elif self.has_same_seeds:
            source = self.saved_layout.rank_of_seed(self.layout.seed_index(self.rank))
        is_own = source == 0 or not self.is_of_rank_0_alone
        return source if is_own else 0, is_own

    def report_missing(self, what: str, *, note: str = "") -> None:
        """Report that something is missing in the checkpoint."""
        elsewhere = ""
        if (
            self.found.manifest is not None and self.found.manifest.place != 0
        ):  # one node's part of a checkpoint
            elsewhere = (
                " The main process's machine may have it, but shares no disk with this one: copy it from there, and "
                "save with `ProjectConfiguration(save_on_each_node=True)`."
            )
        self.strict.report(f"{what} is missing in `{self.found.path}`{note}.{elsewhere}")

    def check_class(self, key: str, index: int, now: type) -> bool:
        """Compare a class of the user with the one that the manifest records; return whether it records one.

        Raises:
            ValueError: If they differ.
        """
        manifest = self.found.manifest
        saved = manifest.objects.get(key, ()) if manifest is not None else ()
        if index < len(saved) and saved[index].rpartition(".")[2] != now.__name__:
            raise ValueError(
                f"it was saved from a `{saved[index]}`, which `{now.__module__}.{now.__qualname__}` is not"
            )
        return index < len(saved)


@dataclass(frozen=True)
class RankState:
    """The state of one rank in a checkpoint.

    Attributes:
        states: Random states of the saving rank that read the same share of the data, or else of another rank.
        accumulation: State of the gradient accumulation; None if it is missing.
        gradients: Gradients of an unfinished accumulation in the same layout, mapped from their file.
    """

    states: States | None = None
    accumulation: Mapping[str, Any] | None = None
    gradients: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, saved: SavedRun, name: str, *, device_index: int) -> Self:
        """Return the state of this rank in a checkpoint; ``name`` is the file of its random states."""
        content = read_torch_file(saved.files.path(name))
        states, accumulation = from_file(content, device_index=device_index, file_name=name)
        gradients_name, gradients = ACCUMULATED_GRADIENTS.name(saved.rank), None
        # Accelerate and older releases do not write it.
        accumulation.setdefault("is_accumulating", gradients_name in saved.files.names)
        if accumulation["is_accumulating"] and saved.has_same_ranks:
            with saved.strict.loading(gradients_name, GRADIENTS):
                gradients = read_weights(saved.files.path(gradients_name))
        return cls(states, accumulation, gradients)

    @property
    def was_accumulating(self) -> bool:
        """Whether the checkpoint was saved within an accumulation, and so has a file of gradients."""
        return self.accumulation is not None and bool(self.accumulation["is_accumulating"])

    def window(self, saved: SavedRun, *, num_steps: int) -> Mapping[str, Any] | None:
        """Return the state of the accumulation to resume, or None if it starts over.

        It does if the layout of the ranks has changed, or ``num_steps``, the micro-batches of a window.
        """
        accumulation = self.accumulation
        if accumulation is None or not saved.has_same_ranks:
            return None
        saved_steps = accumulation.get("num_steps", num_steps)
        if saved_steps != num_steps:
            if self.was_accumulating:
                logger.warning(
                    "The checkpoint was saved within an accumulation of %s steps and is loaded into one of %s: %s.",
                    saved_steps,
                    num_steps,
                    _STARTS_OVER,
                )
            return None
        if accumulation["step"] % num_steps != 0 and not self.was_accumulating:
            logger.warning(
                "The checkpoint was saved within an accumulation, whose gradients are not in it: %s.",
                _STARTS_OVER,
            )
            return None
        return accumulation

    def restore_generators(self, saved: SavedRun, *, orders_follow: bool) -> None:
        """Restore the random states; if the number of data-parallel ranks has changed, derive new ones from them.

        ``orders_follow``: whether loaders draw the order of an epoch from them.
        """
        changes = []
        if saved.has_same_ranks or (saved.has_same_seeds and saved.rank_source[1]):
            if self.states is not None:
                restore_rng_states(self.states)
        else:
            if self.states is not None:
                seed_index, num_seeds = saved.layout.seed_index(saved.rank), saved.layout.num_seeds
                reseed_for(self.states, rank=seed_index, world_size=num_seeds)
            order = f", so {_NEW_ORDER}" if orders_follow else ""
            changes.append(f"every rank derives new random states from it{order}")
        if saved.has_same_ranks:
            return
        if saved.is_of_rank_0_alone:
            changes = ["it has the random states of rank 0 only, from which the other ranks derive new ones"]
        if self.was_accumulating:
            changes.append(_STARTS_OVER)
        if changes:
            logger.warning(
                "The checkpoint was saved by %s and is loaded by %s: %s.",
                "the main process alone" if saved.is_of_rank_0_alone else _described(saved.saved_layout),
                _described(saved.layout),
                " and ".join(changes),
            )


def _described(layout: MeshLayout) -> str:
    """Describe a layout: the number of processes, and the mesh axes unless each process has a full model."""
    used = [f"{axis}={size}" for axis, size in asdict(layout).items() if size > 1]
    is_plain = layout == MeshLayout.of_replicas(layout.world_size)
    processes = "1 process" if layout.world_size == 1 else f"{layout.world_size} processes"
    return processes + ("" if is_plain else f" ({', '.join(used)})")
