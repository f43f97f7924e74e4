"""Parts of a checkpoint: one item for each object of the run that has a state.

Saving writes the items, loading reads them, and the manifest describes them.
"""

from __future__ import annotations

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from accel.checkpoints.runs import GRADIENTS, RankState, RunObjects, SavedRun
from accel_backends.checkpoint_formats.protocol import (
    PreparedModel,
    PreparedOptimizer,
    SaveChoices,
    SavedModel,
)
from accel_backends.strategies.capabilities import OpenGradients
from accel_backends.unwrap import inner_optimizer, stepped_optimizer
from accel_bigmodel.offload.placeholders import weight_of
from accel_checkpoint.file_names import (
    ACCUMULATED_GRADIENTS,
    CUSTOM_OBJECTS,
    LOADERS,
    LOADERS_OF_RANKS,
    OPTIMIZER_NAME,
    OPTIMIZERS,
    RANDOM_STATES,
    SAFE_MODELS,
    SCALERS,
    SCHEDULER_NAME,
    SCHEDULERS,
    FileKind,
)
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.random_states import to_file as states_to_file
from accel_checkpoint.saving.pending_files import PendingFile, SafetensorsFile, TorchFile
from accel_checkpoint.strictness import Strictness
from accel_checkpoint.tensors import DeferredTensor
from accel_data import PreparedLoader
from accel_data.loaders.state import load_into, to_file
from accel_ops.random import capture_rng_states
from accel_state.errors import CheckpointError
from accel_state.logging import get_logger
from accel_state.user_warnings import warn_user

logger = get_logger(__name__)
SaveHook = Callable[[list[nn.Module], list[Mapping[str, Any]], str], None]


@dataclass
class StateItem(ABC):
    """An object of the run, and its file in a checkpoint.

    Attributes:
        run: The run.
        index: Its index among the objects of its kind.
        value: The object.
    """

    run: RunObjects
    index: int
    value: Any

    kind: ClassVar[str]
    key: ClassVar[str] = ""
    """Key of the classes of this kind in the manifest; empty if they are not recorded."""
    is_collective: ClassVar[bool] = False
    """Whether all ranks must call `save` together."""

    files: ClassVar[FileKind]
    """The names of its files, by their number; of those in messages, if there are several."""

    @classmethod
    def indexes_in(cls, saved: SavedRun) -> Collection[int]:
        """Return the indexes of this kind in a checkpoint, sorted."""
        return cls.files.numbers(saved.files.names)

    @property
    def number(self) -> int:
        """Number of its file."""
        return self.index

    @property
    def file(self) -> str:
        """Name of its file."""
        return self.files.name(self.number)

    @property
    def of_class(self) -> type:
        """The user's class."""
        return type(self.value)

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.kind} {self.index} ({self.of_class.__name__})"

    def file_in(self, saved: SavedRun) -> str | None:
        """Return the name of its file in a checkpoint; None if it has none."""
        name = self.file
        return name if name in saved.files.names else None

    @abstractmethod
    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        """Return the files that this rank writes."""

    @abstractmethod
    def read(self, saved: SavedRun, name: str) -> Any:
        """Read and check the state without changing anything, and return what `load` takes.

        Raises:
            AccelError: If the state cannot be read.
            ValueError: If it does not fit, with the reason.
        """

    @abstractmethod
    def load(self, content: Any, saved: SavedRun) -> None:
        """Copy the state into the object."""

    def report_missing(self, saved: SavedRun) -> None:
        """Report that a checkpoint has no file of it."""
        saved.report_missing(f"`{self.file}`, the state of {self.kind} {self.index},")

    def strictness(self, saved: SavedRun) -> Strictness:
        """Whether a mismatch is an error."""
        return saved.strict


@dataclass
class ModelItem(StateItem):
    """A model of the user."""

    state: Mapping[str, Any] = field(default_factory=dict)
    """The weights to save, after hooks have seen them."""

    kind = "model"
    key = "models"
    is_collective = True
    files = SAFE_MODELS

    @classmethod
    def indexes_in(cls, saved: SavedRun) -> Collection[int]:
        return sorted(saved.formats.models)

    @property
    def of_class(self) -> type:
        kind = type(self.value)
        # `fully_shard` replaces the class of each module by a new one, whose second base is the user's class.
        return kind.__bases__[1] if issubclass(kind, FSDPModule) else kind

    def file_in(self, saved: SavedRun) -> str | None:
        form = saved.formats.models.get(self.index)
        return None if form is None else form.model_file(self.index)

    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        return self.run.form.model_files(self.state, index=self.index, choices=choices)

    def read(self, saved: SavedRun, name: str) -> SavedModel:
        """Open and check its files.

        Raises:
            CheckpointError: If the model has parameters on the meta device, or the files do not fit it.
        """
        self._reject_meta_parameters()
        into = PreparedModel(self.run.strategy, self.value, saved.key_map)
        model = saved.formats.models[self.index].open_model(saved.files, into, index=self.index)
        saved.names_in_file |= model.names_in_file
        self._report(model.misfits(), saved)
        return model

    def load(self, content: SavedModel, saved: SavedRun) -> None:
        """Copy the weights into the model."""
        with _without_placeholder_warnings():
            self._report(content.load(), saved)

    def strictness(self, saved: SavedRun) -> Strictness:
        return saved.strict_models

    def _report(self, misfits: Sequence[str], saved: SavedRun) -> None:
        if misfits:
            name, reasons = self.file_in(saved), "; ".join(misfits)
            saved.strict_models.report(f"`{name}` does not fit {self.label}: {reasons}.")

    def _reject_meta_parameters(self) -> None:
        """Reject parameters on the meta device, except offloaded weights and deferred ones, which can be loaded."""
        parameters = self.value.named_parameters()
        on_meta = [name for name, one in parameters if one.is_meta and weight_of(one) is None]
        own = self.run.strategy.model_tensors(self.value, to_fill=True) if on_meta else {}
        for name in on_meta:
            if not isinstance(own.get(name), DeferredTensor):
                raise CheckpointError(
                    f"`{name}` of {self.label} is on the meta device, so there is no memory to load it into. "
                    "Allocate it first, for example with `to_empty`."
                )


class OptimizerItem(StateItem):
    """A prepared optimizer."""

    kind = "optimizer"
    key = OPTIMIZER_NAME
    is_collective = True
    files = OPTIMIZERS

    @classmethod
    def indexes_in(cls, saved: SavedRun) -> Collection[int]:
        return sorted(saved.formats.optimizers)

    @property
    def of_class(self) -> type:
        made = getattr(self.value, "user_optimizer", None)
        return type(stepped_optimizer(self.value) if made is None else made)

    def file_in(self, saved: SavedRun) -> str | None:
        form = saved.formats.optimizers.get(self.index)
        return None if form is None else form.optimizer_file(self.index)

    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        return self.run.form.optimizer_files(self._prepared({}), index=self.index, choices=choices)

    def read(self, saved: SavedRun, name: str) -> Callable[[], None]:
        """Read the state, which may be mapped from its file."""
        is_same = saved.check_class(self.key, self.index, self.of_class)
        form = saved.formats.optimizers[self.index]
        prepared = replace(self._prepared(saved.names_in_file), is_of_saved_class=is_same)
        return form.open_optimizer(saved.files, prepared, index=self.index)

    def load(self, content: Callable[[], None], saved: SavedRun) -> None:
        """Copy the state into the optimizer."""
        content()

    def _prepared(self, names_in_file: Mapping[str, str]) -> PreparedOptimizer:
        inner = stepped_optimizer(self.value)
        return PreparedOptimizer(self.run.strategy, inner, self.run.models, names_in_file)


class CustomItem(StateItem):
    """A registered object, whose state is one file that the main process writes."""

    kind = "custom object"
    key = "custom"
    files = CUSTOM_OBJECTS
    is_trained: ClassVar[bool] = False
    """Whether its values should be finite."""

    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        if not choices.is_writer:
            return []
        return [TorchFile(self.file, self.value.state_dict(), is_trained=self.is_trained)]

    def read(self, saved: SavedRun, name: str) -> Any:
        return read_torch_file(saved.files.path(name))

    def load(self, content: Any, saved: SavedRun) -> None:
        self.value.load_state_dict(content)


class SchedulerItem(CustomItem):
    """A prepared scheduler."""

    kind = "scheduler"
    key = SCHEDULER_NAME
    files = SCHEDULERS

    @property
    def of_class(self) -> type:
        return type(getattr(self.value, "scheduler", self.value))

    def read(self, saved: SavedRun, name: str) -> Any:
        """Return the content of the file, checked, because torch's schedulers would load any dict.

        Raises:
            ValueError: If it is the state of another kind of scheduler.
        """
        saved.check_class(self.key, self.index, self.of_class)
        content = read_torch_file(saved.files.path(name))
        for key in self.value.state_dict():
            if not key.startswith("_") and key not in content:
                raise ValueError(f"it has no `{key}`, so it is the state of another kind of scheduler")
        return content


def keep_rates_together(run: RunObjects, loaded: Sequence[StateItem]) -> None:
    """Copy the learning rates of schedules to their optimizers if only one of both was loaded, with a warning."""
    values = {id(item.value) for item in loaded}
    optimizers = {id(stepped_optimizer(optimizer)): optimizer for optimizer in run.optimizers}
    for scheduler in run.schedulers:
        schedule = getattr(scheduler, "scheduler", scheduler)
        its_own: Any = getattr(schedule, "optimizer", None)
        optimizer = optimizers.get(id(inner_optimizer(its_own)))
        is_together = (id(scheduler) in values) == (id(optimizer) in values)
        if optimizer is None or is_together or not hasattr(schedule, "get_last_lr"):
            continue
        rates, before = schedule.get_last_lr(), [float(group["lr"]) for group in optimizer.param_groups]
        if before == [float(rate) for rate in rates]:
            continue
        for group, rate in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], torch.Tensor) else float(rate)
        warn_user(
            f"Of a `{type(schedule).__name__}` and its optimizer only one was loaded. The learning rate is that of the "
            f"schedule, {rates[0]:g}, and not {before[0]:g} as in the optimizer. Load both to resume the training."
        )


class ScalerItem(CustomItem):
    """The gradient scaler, which the precision keeps."""

    kind = "gradient scaler"
    key = ""
    label = "the gradient scaler"
    files = SCALERS
    is_trained = True

    def report_missing(self, saved: SavedRun) -> None:
        note = f": it was saved without the gradient scaler that `mixed_precision={self.value.name}` uses"
        saved.report_missing(f"`{self.file}`", note=note)


@dataclass
class LoaderItem(StateItem):
    """A prepared loader. A checkpoint may have more or fewer of them."""

    number: int = 0
    """Number of its files: when saving, its index; when loading, the index of the corresponding saved loader."""

    kind = "loader"
    files = LOADERS

    @property
    def label(self) -> str:
        return f"loader {self.index}"

    def file_in(self, saved: SavedRun) -> str | None:
        """Return the name of this rank's file, or of the one that all ranks share; None if there is none."""
        if self._has_state_per_rank:
            of_rank = LOADERS_OF_RANKS.name(self.number, saved.rank)
            if of_rank in saved.files.names:
                return of_rank
        return super().file_in(saved)

    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        """Return the main process's file, and a file of this rank if the ranks' states differ."""
        names = [self.file] if choices.is_writer else []
        if choices.rank > 0 and self._has_state_per_rank:
            names.append(LOADERS_OF_RANKS.name(self.number, choices.rank))
        if self._was_left_early and self.run.resumes_loaders():
            logger.warning_once(
                "The checkpoint has no position in the epoch of %s: a loop was left early, as by `break`, before "
                "`save_state` was called. After `load_state` that epoch starts over. To resume within it, save inside "
                "the loop.",
                self.label,
            )
        content = to_file(self.value) if names else {}
        return [TorchFile(name, content) for name in names]

    def read(self, saved: SavedRun, name: str) -> tuple[str, Any]:
        return name, read_torch_file(saved.files.path(name))

    def load(self, content: tuple[str, Any], saved: SavedRun) -> None:
        """Resume the loader, or let its epoch start over."""
        name, state = content
        is_of_another = saved.is_of_rank_0_alone and self._has_state_per_rank
        position = saved.restore_loaders and not is_of_another
        was_mid_epoch = load_into(self.value, state, position=position, file_name=name)
        if was_mid_epoch and not position:
            saved.restarted_loaders.append(self.label)

    def report_missing(self, saved: SavedRun) -> None:
        """Warn that the loader starts from the beginning, unless the checkpoint's package saves no loaders."""
        if saved.found.manifest is not None:
            logger.warning(
                "The checkpoint has no state of %s. Skip what was read with `skip_first_batches`.", self.label
            )

    @property
    def _was_left_early(self) -> bool:
        loader = self.value
        return isinstance(loader, PreparedLoader) and loader.is_mid_epoch and not loader.is_under_way

    @property
    def _has_state_per_rank(self) -> bool:
        return isinstance(self.value, PreparedLoader) and self.value.has_state_per_rank


class RankItem(StateItem):
    """This rank: its random states, and its gradients within an accumulation.

    It is the last item, so that loading the other items does not draw random numbers afterwards.
    """

    kind = "rank"
    label = "the generators of this rank"
    files = RANDOM_STATES

    def report_missing(self, saved: SavedRun) -> None:
        """Report that a checkpoint has no random states for this rank."""
        name = RANDOM_STATES.name(saved.rank_source[0])
        note = ", so random numbers would differ from here on"
        saved.report_missing(f"`{name}`, the random states of rank {self.index},", note=note)

    def file_in(self, saved: SavedRun) -> str | None:
        """Return the file of the rank that saved the same share of the data, or of the first one."""
        name = RANDOM_STATES.name(saved.rank_source[0])
        return name if name in saved.files.names else None

    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        """Return this rank's gradients within an accumulation, and its random states as they are now."""
        run, files = self.run, list[PendingFile]()
        if run.accumulation["is_accumulating"] and run.strategy.open_gradients is not None:
            name, gradients = (
                ACCUMULATED_GRADIENTS.name(self.index),
                run.strategy.open_gradients.take(run.models),
            )
            # The gradients of a scaled loss may overflow.
            files.append(SafetensorsFile(name, gradients, is_trained=False))
        states = states_to_file(
            capture_rng_states(), accumulation=run.accumulation, device_index=run.device_index
        )
        return [*files, TorchFile(self.file, states)]

    def read(self, saved: SavedRun, name: str) -> RankState:
        """Return the random states and the accumulation."""
        return RankState.read(saved, name, device_index=self.run.device_index)

    def load(self, content: RankState | None, saved: SavedRun) -> None:
        """Restore the accumulation and the random states, as far as the layout of the ranks allows."""
        run, state, manifest = self.run, content or RankState(), saved.found.manifest
        window = state.window(saved, num_steps=run.accumulation["num_steps"])
        num_windows = None if manifest is None else manifest.step
        run.stepper.load_state_dict(window or {"step": 0}, num_windows=num_windows)
        open_gradients = run.strategy.open_gradients or OpenGradients()
        open_gradients.restore(run.models, {})  # instead of those from before the load
        if window is not None and state.gradients is not None:
            with saved.strict.loading(ACCUMULATED_GRADIENTS.name(self.index), GRADIENTS):
                open_gradients.restore(run.models, state.gradients)
        loaders = (loader for loader in run.loaders.values() if isinstance(loader, PreparedLoader))
        state.restore_generators(saved, orders_follow=any(loader.follows_random_state for loader in loaders))


def loader_items(run: RunObjects, saved: SavedRun | None = None) -> list[LoaderItem]:
    """Return an item for each loader with a state; numbered as in the checkpoint to load, if any.

    The numbers differ if the run that saved had prepared other loaders before, such as one for each epoch.
    """
    loaders = {n: one for n, one in run.loaders.items() if callable(getattr(one, "state_dict", None))}
    numbers = loaders if saved is None else LoaderItem.indexes_in(saved)
    others = iter([number for number in numbers if number not in loaders])
    return [
        LoaderItem(run, index, loader, index if index in numbers else next(others, index))
        for index, loader in loaders.items()
    ]


def other_items(run: RunObjects, saved: SavedRun | None = None) -> list[StateItem]:
    """Return an item for each object that is not a model, and for this rank, in their loading order.

    Args:
        run: The run.
        saved: The checkpoint to load, if any.
    """
    return [
        *(OptimizerItem(run, index, one) for index, one in enumerate(run.optimizers)),
        *(SchedulerItem(run, index, one) for index, one in enumerate(run.schedulers)),
        *loader_items(run, saved),
        *([ScalerItem(run, 0, run.precision)] if run.precision.scaler is not None else []),
        *(CustomItem(run, index, one) for index, one in enumerate(run.custom)),
        RankItem(run, run.rank, None),
    ]


def class_names(run: RunObjects) -> dict[str, list[str]]:
    """Return the users' classes by kind, for error messages when the checkpoint is loaded."""
    names: dict[str, list[str]] = {}
    for item in (*(ModelItem(run, index, one) for index, one in enumerate(run.models)), *other_items(run)):
        if item.key:
            kind = item.of_class
            names.setdefault(item.key, []).append(f"{kind.__module__}.{kind.__qualname__}")
    return names


def files_to_save(
    run: RunObjects,
    folder: Path,
    choices: SaveChoices,
    *,
    hooks: Sequence[SaveHook],
    value_of_rank_0: Callable[[str], str],
) -> list[PendingFile]:
    """Return this rank's files. Every rank must call it, since it may use collectives.

    Args:
        run: The objects to save.
        folder: The temporary folder, for hooks that write files.
        choices: How to write the checkpoint, and this rank's part in it.
        hooks: Called with the models, the weights and the folder before anything is written. A hook that removes
            weights from the list must save them.
        value_of_rank_0: Broadcasts a value: called with this rank's, returns rank 0's.

    Raises:
        CheckpointError: If gradients of an unfinished accumulation would be lost.
    """
    if run.accumulation["is_accumulating"] and run.strategy.open_gradients is None:
        raise CheckpointError(
            "`save_state` was called within an accumulation, whose gradients are not reduced over all ranks yet and "
            "would be lost. Save when `accelerator.sync_gradients` is True, after the optimizer's step."
        )
    others = other_items(run)
    before = [run.form.model_state(PreparedModel(run.strategy, model)) for model in run.models]
    models, weights, files = list(run.models), list(before), list[PendingFile]()
    try:
        for hook in hooks:
            hook(models, weights, str(folder))
    finally:
        # Even after a hook has failed on this rank: the other ranks may wait in the collectives of the format.
        # A hook may remove weights on rank 0 only, but all ranks must write the same remaining weights.
        kept = json.dumps([n for n, one in enumerate(before) if any(one is other for other in weights)])
        kept_on_0 = value_of_rank_0(kept)
        weights = weights if kept_on_0 == kept else [before[number] for number in json.loads(kept_on_0)]
        items = [ModelItem(run, index, None, state) for index, state in enumerate(weights)]
        files += [f for item in (*items, *others) if item.is_collective for f in item.save(choices)]
    return [*files, *(f for item in others if not item.is_collective for f in item.save(choices))]


@contextmanager
def _without_placeholder_warnings() -> Iterator[None]:
    """Suppress torch's warning that copying into a meta parameter has no effect: hooks store offloaded weights."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter in the checkpoint")
        yield
