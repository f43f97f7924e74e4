"""What a checkpoint is made of: one item for each object of the run that has a state.

Saving writes the items, loading reads them, and the manifest describes them.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from accel_backends import Precision, Strategy
from accel_backends.checkpoint_formats.choosing import (
    format_of,
    format_of_optimizer,
    saved_models,
    saved_optimizers,
)
from accel_backends.checkpoint_formats.model_state import check_model, load_model
from accel_backends.checkpoint_formats.optimizer_state import misfit_of, without_file
from accel_backends.checkpoint_formats.protocol import CheckpointFormat, Files, SaveChoices, SavedState
from accel_backends.stepping.stepper import Stepper
from accel_bigmodel.offload.placeholders import weight_of
from accel_checkpoint.file_names import (
    LOADER_NAME,
    OPTIMIZER_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
    custom_file,
    loader_of_rank_file,
    numbered_file,
    numbers_of,
    numbers_of_custom,
    weight_format,
)
from accel_checkpoint.files import regular_file
from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.reading.listing import Found
from accel_checkpoint.reading.strictness import Strictness
from accel_checkpoint.saving.pending_files import TorchFile
from accel_data import PreparedLoader
from accel_data.loader_files import load_into, to_file
from accel_state.errors import CheckpointError
from accel_state.logging import get_logger
from accel_state.mesh_layout import MeshLayout

logger = get_logger(__name__)


@dataclass(frozen=True)
class RunObjects:
    """The objects of a run that have a state, in the order in which they were prepared.

    Attributes:
        strategy: Saves and loads the states of models and optimizers.
        precision: Saves and loads the state of the gradient scaler.
        stepper: Holds the state of the gradient accumulation.
        form: The format in which models and optimizers are saved.
        device_index: Index of this rank's device on its machine.
        models: Prepared models.
        optimizers: Prepared optimizers.
        schedulers: Prepared schedulers.
        loaders: Prepared loaders, by number.
        custom: Objects registered for checkpointing.
        active_loaders: The loaders that are being iterated over.
    """

    strategy: Strategy
    precision: Precision
    stepper: Stepper
    form: CheckpointFormat
    device_index: int
    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    schedulers: Sequence[Any]
    loaders: Mapping[int, Any]
    custom: Sequence[Any]
    active_loaders: Sequence[Any]

    def bare_models(self) -> list[nn.Module]:
        """Return the users' models, without wrappers."""
        return [self.strategy.unwrap(model, keep_torch_compile=False) for model in self.models]

    def model_of(self, optimizer: torch.optim.Optimizer) -> nn.Module | None:
        """Return the model whose parameters ``optimizer`` updates; of several, the one that shares most with it."""
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        shares = [sum(id(one) in stepped for one in model.parameters()) for model in self.models]
        return self.models[shares.index(max(shares))] if any(shares) else None


@dataclass
class SavedRun:
    """A checkpoint that is being loaded.

    Attributes:
        found: The checkpoint.
        names: Its file names.
        rank: This process.
        layout: Layout of the processes that load it.
        strict: Whether a mismatch is an error or a warning.
        strict_models: The same for the weights of models.
        restore_loaders: Whether loaders resume in the middle of an epoch.
        opened: Closes the files that are still open.
        restarted_loaders: Loaders whose epoch starts over although it was saved in the middle.
    """

    found: Found
    names: Sequence[str]
    rank: int
    layout: MeshLayout
    strict: Strictness
    strict_models: Strictness
    restore_loaders: bool
    opened: ExitStack
    restarted_loaders: list[str] = field(default_factory=list)

    def content(self, name: str) -> Any:
        """Return the content of a file written by `torch.save`."""
        return read_torch_file(regular_file(self.found.path, name))

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

    def check_class(self, key: str, index: int, now: type) -> None:
        """Compare a class of the user with the one that the manifest records.

        Raises:
            ValueError: If they differ.
        """
        manifest = self.found.manifest
        saved = manifest.objects.get(key, ()) if manifest is not None else ()
        if index < len(saved) and saved[index].rpartition(".")[2] != now.__name__:
            raise ValueError(f"it was saved from a `{saved[index]}`, which `{class_name(now)}` is not")


@dataclass
class StateItem(ABC):
    """An object of the run, and its file in a checkpoint.

    Attributes:
        run: The run.
        index: How many of its kind come before it.
        value: The object.
    """

    run: RunObjects
    index: int
    value: Any

    kind: ClassVar[str]
    key: ClassVar[str] = ""
    """Under which the manifest records the classes of this kind, if it does."""
    is_collective: ClassVar[bool] = False
    """Whether all ranks must call `save` together."""

    @property
    @abstractmethod
    def file(self) -> str:
        """Name of its file, for messages that of one of its files."""

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.kind} {self.index} ({self.of_class.__name__})"

    @property
    def of_class(self) -> type:
        """The user's class."""
        return type(self.value)

    @classmethod
    @abstractmethod
    def saved(cls, names: Collection[str]) -> dict[int, str]:
        """Return the files of this kind in a checkpoint, by index."""

    def file_in(self, saved: SavedRun) -> str | None:
        """Return the name of its file in a checkpoint; None if it has none."""
        return self.file if self.file in saved.names else None

    @abstractmethod
    def save(self, choices: SaveChoices) -> Files:
        """Return the files that this rank writes."""

    @abstractmethod
    def read(self, saved: SavedRun, name: str) -> Any:
        """Read and check the state without changing anything, and return what `load` takes.

        Raises:
            AccelError: If the state cannot be read.
            ValueError: If it does not fit; says why.
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

    def is_open(self, content: Any) -> bool:
        """Whether all its files are open, so that another save may replace them before `load`."""
        return True


@dataclass
class ModelItem(StateItem):
    """A prepared model."""

    state: Mapping[str, Any] = field(default_factory=dict)
    """The weights to save, after hooks have seen them."""

    kind = "model"
    key = "models"
    is_collective = True

    @property
    def file(self) -> str:
        """Name of its file."""
        return weight_format(self.index, safe=True).whole

    @property
    def of_class(self) -> type:
        """The user's class."""
        return type(self.run.strategy.unwrap(self.value, keep_torch_compile=False))

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"model {self.index} ({class_name(self.of_class).rpartition('.')[2]})"

    @classmethod
    def saved(cls, names: Collection[str]) -> dict[int, str]:
        """Return the files of models, by index."""
        return {index: weight_format(index, safe=True).whole for index in saved_models(names)}

    def file_in(self, saved: SavedRun) -> str | None:
        """Return the name that messages use for its files; None if it has none."""
        if self.index not in saved_models(saved.names):
            return None
        return format_of(saved.names, index=self.index).model_file(self.index)

    def save(self, choices: SaveChoices) -> Files:
        """Return the files that this rank writes."""
        return self.run.form.model_files(self.state, index=self.index, choices=choices)

    def read(self, saved: SavedRun, name: str) -> tuple[CheckpointFormat, SavedState, ExitStack]:
        """Open and check its files."""
        self._reject_meta_parameters()
        form = format_of(saved.names, index=self.index)
        closing = saved.opened.enter_context(ExitStack())
        state = closing.enter_context(form.open_model(saved.found.path, index=self.index))
        self._report(check_model(self.run.strategy, self.value, state), saved, name)
        return form, state, closing

    def load(self, content: tuple[CheckpointFormat, SavedState, ExitStack], saved: SavedRun) -> None:
        """Copy the weights into the model, and close its files."""
        form, state, closing = content
        with closing, _without_placeholder_warnings():
            misfits = load_model(self.run.strategy, self.value, state)
        self._report(misfits, saved, form.model_file(self.index))

    def strictness(self, saved: SavedRun) -> Strictness:
        """Whether a mismatch is an error."""
        return saved.strict_models

    def is_open(self, content: tuple[CheckpointFormat, SavedState, ExitStack]) -> bool:
        """Whether all its files are open."""
        return content[0].opens_all

    def _report(self, misfits: Sequence[str], saved: SavedRun, name: str) -> None:
        if misfits:
            self.strictness(saved).report(f"`{name}` does not fit {self.label}: {'; '.join(misfits)}.")

    def _reject_meta_parameters(self) -> None:
        """Reject parameters on the meta device, except offloaded weights and deferred ones, which can be loaded."""
        bare = self.run.strategy.unwrap(self.value, keep_torch_compile=False)
        on_meta = [name for name, one in bare.named_parameters() if one.is_meta and weight_of(one) is None]
        if not on_meta:
            return
        own = self.run.strategy.state_to_fill(self.value)
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

    @property
    def file(self) -> str:
        """Name of its file."""
        return numbered_file(OPTIMIZER_NAME, self.index)

    @property
    def of_class(self) -> type:
        """The class of the user's optimizer."""
        return self.run.strategy.optimizer_class(self.value)

    @classmethod
    def saved(cls, names: Collection[str]) -> dict[int, str]:
        """Return the files of optimizers, by index."""
        return {index: numbered_file(OPTIMIZER_NAME, index) for index in saved_optimizers(names)}

    def file_in(self, saved: SavedRun) -> str | None:
        """Return the name of its file or folder; None if it has none."""
        form = format_of_optimizer(saved.names, index=self.index)
        return None if form is None else form.optimizer_file(self.index)

    def save(self, choices: SaveChoices) -> Files:
        """Return the files that this rank writes."""
        run = self.run
        if run.form.is_per_rank:
            state: Mapping[str, Any] = run.strategy.own_optimizer_state(self.value)
        else:
            state = run.strategy.local_optimizer_state(self.value, run.model_of(self.value))
        return run.form.optimizer_files(state, self._parameters, index=self.index, choices=choices)

    def read(self, saved: SavedRun, name: str) -> tuple[CheckpointFormat, Mapping[str, Any]]:
        """Read the state, which may be mapped from its file."""
        strategy, inner = self.run.strategy, self._inner
        form = format_of_optimizer(saved.names, index=self.index)
        assert form is not None
        parameters = partial(strategy.own_optimizer_state, inner) if form.is_per_rank else self._parameters
        state = form.read_optimizer(saved.found.path, parameters, index=self.index)
        saved.check_class(self.key, self.index, self.of_class)
        # In a format that each rank reads alone, reading has compared them.
        misfit = None if form.is_per_rank else misfit_of(inner, state, strategy.optimizer_shapes(inner))
        if misfit is not None:
            raise ValueError(misfit)
        return form, state

    def load(self, content: tuple[CheckpointFormat, Mapping[str, Any]], saved: SavedRun) -> None:
        """Copy the state into the optimizer."""
        (form, state), strategy = content, self.run.strategy
        own = state if strategy.capabilities.copies_loaded_states else without_file(self._inner, state)
        if form.is_per_rank:
            self.value.load_state_dict(dict(own))
        else:
            strategy.load_optimizer_state(self.value, own, self.run.model_of(self.value))

    def is_open(self, content: tuple[CheckpointFormat, Mapping[str, Any]]) -> bool:
        """Whether all its files are open."""
        return content[0].opens_all

    @property
    def _inner(self) -> torch.optim.Optimizer:
        return self.run.strategy.bare_optimizer(self.value)

    def _parameters(self) -> Mapping[str, torch.Tensor]:
        return self.run.strategy.optimizer_parameters(self._inner, self.run.models)


class CustomItem(StateItem):
    """A registered object, whose state is one file that the main process writes."""

    kind = "custom object"
    key = "custom"

    @property
    def file(self) -> str:
        """Name of its file."""
        return custom_file(self.index)

    @classmethod
    def saved(cls, names: Collection[str]) -> dict[int, str]:
        """Return the files of registered objects, by index."""
        return {index: custom_file(index) for index in numbers_of_custom(names)}

    def save(self, choices: SaveChoices) -> Files:
        """Return the file, on the rank that writes what all ranks share."""
        return Files([TorchFile(self.file, self.value.state_dict())] if choices.is_writer else [])

    def read(self, saved: SavedRun, name: str) -> Any:
        """Return the content of the file."""
        return saved.content(name)

    def load(self, content: Any, saved: SavedRun) -> None:
        """Load the state."""
        self.value.load_state_dict(content)


class SchedulerItem(CustomItem):
    """A prepared scheduler."""

    kind = "scheduler"
    key = SCHEDULER_NAME

    @property
    def file(self) -> str:
        """Name of its file."""
        return numbered_file(SCHEDULER_NAME, self.index)

    @property
    def of_class(self) -> type:
        """The class of the user's scheduler."""
        return type(getattr(self.value, "scheduler", self.value))

    @classmethod
    def saved(cls, names: Collection[str]) -> dict[int, str]:
        """Return the files of schedulers, by index."""
        return {index: numbered_file(SCHEDULER_NAME, index) for index in numbers_of(SCHEDULER_NAME, names)}

    def read(self, saved: SavedRun, name: str) -> Any:
        """Return the content of the file; torch's schedulers would load any dict."""
        saved.check_class(self.key, self.index, self.of_class)
        content = saved.content(name)
        missing = [key for key in self.value.state_dict() if not key.startswith("_") and key not in content]
        if missing:
            raise ValueError(f"it has no `{missing[0]}`, so it is the state of another kind of scheduler")
        return content


class ScalerItem(CustomItem):
    """The gradient scaler, which the precision keeps."""

    kind = "gradient scaler"
    key = ""
    file = SCALER_NAME
    label = "the gradient scaler"

    def report_missing(self, saved: SavedRun) -> None:
        """Report that a checkpoint was saved without a scaler."""
        note = f": it was saved without the gradient scaler that `mixed_precision={self.value.name}` uses"
        saved.report_missing(f"`{SCALER_NAME}`", note=note)

    @classmethod
    def saved(cls, names: Collection[str]) -> dict[int, str]:
        """Return the file of the scaler, if any."""
        return {0: SCALER_NAME} if SCALER_NAME in names else {}


@dataclass
class LoaderItem(StateItem):
    """A prepared loader. A checkpoint may have more or fewer of them."""

    number: int = 0
    """Number of its files: its own when saving; when loading, that of the loader saved in its place."""

    kind = "loader"

    @property
    def file(self) -> str:
        """Name of the main process's file."""
        return numbered_file(LOADER_NAME, self.number)

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"loader {self.index}"

    def report_missing(self, saved: SavedRun) -> None:
        """Warn that the loader begins at its start, unless the checkpoint is of a package that saves no loaders."""
        if saved.found.manifest is not None:
            logger.warning(
                "The checkpoint has no state of %s. Skip what was read with `skip_first_batches`.", self.label
            )

    @property
    def is_under_way(self) -> bool:
        """Whether it, or a loader that skips some of its batches, is being iterated over."""
        if isinstance(self.value, PreparedLoader):
            return any(self.value.shares_progress_with(one) for one in self.run.active_loaders)
        return any(one is self.value for one in self.run.active_loaders)

    @property
    def was_left_early(self) -> bool:
        """Whether it is in the middle of an epoch and no loop reads it any more."""
        return isinstance(self.value, PreparedLoader) and self.value.is_mid_epoch and not self.is_under_way

    @classmethod
    def saved(cls, names: Collection[str]) -> dict[int, str]:
        """Return the main process's files of loaders, by number."""
        return {number: numbered_file(LOADER_NAME, number) for number in numbers_of(LOADER_NAME, names)}

    def file_in(self, saved: SavedRun) -> str | None:
        """Return the name of this rank's file, or of the one that all ranks share; None if there is none."""
        of_rank = loader_of_rank_file(self.number, saved.rank)
        return of_rank if self._has_state_per_rank and of_rank in saved.names else super().file_in(saved)

    def save(self, choices: SaveChoices) -> Files:
        """Return the main process's file, and a file of this rank if the ranks' states differ."""
        names = [self.file] if choices.is_writer else []
        if choices.rank > 0 and self._has_state_per_rank:
            names.append(loader_of_rank_file(self.number, choices.rank))
        content = to_file(self.value, is_under_way=self.is_under_way) if names else {}
        return Files([TorchFile(name, content) for name in names])

    def read(self, saved: SavedRun, name: str) -> tuple[str, Any]:
        """Return the file's name and content."""
        return name, saved.content(name)

    def load(self, content: tuple[str, Any], saved: SavedRun) -> None:
        """Resume the loader, or let its epoch start over."""
        manifest = saved.found.manifest
        is_of_another = manifest is not None and manifest.is_of_rank_0_alone and self._has_state_per_rank
        position = saved.restore_loaders and not is_of_another
        name, state = content
        was_mid_epoch = load_into(self.value, state, position=position, file_name=name)
        if was_mid_epoch and not position:
            saved.restarted_loaders.append(self.label)

    @property
    def _has_state_per_rank(self) -> bool:
        return isinstance(self.value, PreparedLoader) and self.value.has_state_per_rank


KINDS: tuple[type[StateItem], ...] = (
    ModelItem,
    OptimizerItem,
    SchedulerItem,
    CustomItem,
    LoaderItem,
    ScalerItem,
)
"""In the order in which files that nothing was prepared for are listed."""


def model_items(run: RunObjects, models: Sequence[nn.Module]) -> list[ModelItem]:
    """Return an item for each of these models."""
    return [ModelItem(run, index, model) for index, model in enumerate(models)]


def loader_items(run: RunObjects, names: Collection[str] | None = None) -> list[LoaderItem]:
    """Return an item for each loader with a state; with the names of a checkpoint, numbered as there.

    The numbers differ if the run that saved had prepared other loaders before, such as one for each epoch.
    """
    loaders = {n: one for n, one in run.loaders.items() if callable(getattr(one, "state_dict", None))}
    if names is None:
        return [LoaderItem(run, number, loader, number) for number, loader in loaders.items()]
    saved = LoaderItem.saved(names)
    others = iter([number for number in saved if number not in loaders])
    return [
        LoaderItem(run, index, loader, index if index in saved else next(others, index))
        for index, loader in loaders.items()
    ]


def other_items(run: RunObjects, names: Collection[str] | None = None) -> list[StateItem]:
    """Return an item for each object that is no model, in the order in which they are loaded.

    Args:
        run: The run.
        names: The file names of the checkpoint to load, if any.
    """
    return [
        *(OptimizerItem(run, index, one) for index, one in enumerate(run.optimizers)),
        *(SchedulerItem(run, index, one) for index, one in enumerate(run.schedulers)),
        *loader_items(run, names),
        *([ScalerItem(run, 0, run.precision)] if run.precision.scaler is not None else []),
        *(CustomItem(run, index, one) for index, one in enumerate(run.custom)),
    ]


def class_name(kind: type) -> str:
    """Return the qualified name of the user's class, with its module."""
    if issubclass(kind, FSDPModule):
        # `fully_shard` gives each module a class of its own, with the user's class as its second base.
        kind = kind.__bases__[1]
    return f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def _without_placeholder_warnings() -> Iterator[None]:
    """Suppress torch's warning that copying into a meta parameter has no effect; for offloaded weights it has."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter in the checkpoint")
        yield
