"""What a checkpoint is made of: one item for each object of the run that has a state.

Saving writes the items, loading reads them, and the manifest describes them.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from accel_backends import Precision, Strategy
from accel_backends.checkpoint_formats.choosing import SavedFormats
from accel_backends.checkpoint_formats.protocol import (
    CheckpointFormat,
    PreparedOptimizer,
    SaveChoices,
    SavedModel,
)
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
    ranks_of_random_states,
    weight_format,
)
from accel_checkpoint.files import SavedFiles
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.listing import Found
from accel_checkpoint.saving.pending_files import PendingFile, TorchFile
from accel_checkpoint.saving.snapshot import DeferredTensor
from accel_checkpoint.strictness import Strictness
from accel_data import PreparedLoader
from accel_data.loaders.state import load_into, to_file
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

    @cached_property
    def bare_models(self) -> list[nn.Module]:
        """The users' models, without wrappers."""
        return [self.strategy.unwrap(model, keep_torch_compile=False) for model in self.models]


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
        return MeshLayout.of_replicas(max(len(ranks_of_random_states(self.files.names)), 1))

    @cached_property
    def is_of_rank_0_alone(self) -> bool:
        """Whether rank 0 saved it without the states of the other ranks."""
        return self.found.manifest is not None and self.found.manifest.is_of_rank_0_alone

    @cached_property
    def has_same_ranks(self) -> bool:
        """Whether the ranks have the layout of those that saved it, each of which saved its state."""
        return self.saved_layout == self.layout and not self.is_of_rank_0_alone

    def content(self, name: str) -> Any:
        """Return the content of a file written by `torch.save`."""
        return read_torch_file(self.files.path(name))

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

    @staticmethod
    @abstractmethod
    def file_of(index: int) -> str:
        """Return the name of a file of this kind; for messages, if there are several."""

    @staticmethod
    @abstractmethod
    def indexes_in(saved: SavedRun) -> Collection[int]:
        """Return the indexes of this kind in a checkpoint, sorted."""

    @property
    def number(self) -> int:
        """Number of its file."""
        return self.index

    @property
    def file(self) -> str:
        """Name of its file."""
        return self.file_of(self.number)

    @property
    def of_class(self) -> type:
        """The user's class."""
        return type(self.value)

    @property
    def label(self) -> str:
        """What messages call it."""
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

    def is_open(self, content: Any, saved: SavedRun) -> bool:
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

    @staticmethod
    def file_of(index: int) -> str:
        return weight_format(index, safe=True).whole

    @staticmethod
    def indexes_in(saved: SavedRun) -> Collection[int]:
        return sorted(saved.formats.models)

    @property
    def of_class(self) -> type:
        return type(self._bare)

    @property
    def label(self) -> str:
        return f"model {self.index} ({class_name(self.of_class).rpartition('.')[2]})"

    def file_in(self, saved: SavedRun) -> str | None:
        form = saved.formats.models.get(self.index)
        return None if form is None else form.model_file(self.index)

    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        return self.run.form.model_files(self.state, index=self.index, choices=choices)

    def read(self, saved: SavedRun, name: str) -> SavedModel:
        """Open and check its files."""
        self._reject_meta_parameters()
        model = saved.formats.models[self.index].open_model(
            saved.files, self.run.strategy, self.value, index=self.index, key_map=saved.key_map
        )
        saved.names_in_file |= model.names_in_file
        self._report(model.misfits(), saved)
        return model

    def load(self, content: SavedModel, saved: SavedRun) -> None:
        """Copy the weights into the model."""
        with _without_placeholder_warnings():
            self._report(content.load(), saved)

    def strictness(self, saved: SavedRun) -> Strictness:
        return saved.strict_models

    def is_open(self, content: Any, saved: SavedRun) -> bool:
        return saved.formats.models[self.index].opens_all

    @cached_property
    def _bare(self) -> nn.Module:
        return next(
            bare
            for model, bare in zip(self.run.models, self.run.bare_models, strict=True)
            if model is self.value
        )

    def _report(self, misfits: Sequence[str], saved: SavedRun) -> None:
        if misfits:
            name, reasons = self.file_in(saved), "; ".join(misfits)
            saved.strict_models.report(f"`{name}` does not fit {self.label}: {reasons}.")

    def _reject_meta_parameters(self) -> None:
        """Reject parameters on the meta device, except offloaded weights and deferred ones, which can be loaded."""
        parameters = self._bare.named_parameters()
        on_meta = [name for name, one in parameters if one.is_meta and weight_of(one) is None]
        own = self.run.strategy.state_to_fill(self.value) if on_meta else {}
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
    file_of = staticmethod(partial(numbered_file, OPTIMIZER_NAME))

    @staticmethod
    def indexes_in(saved: SavedRun) -> Collection[int]:
        return sorted(saved.formats.optimizers)

    @property
    def of_class(self) -> type:
        return self.run.strategy.optimizer_class(self.value)

    def file_in(self, saved: SavedRun) -> str | None:
        form = saved.formats.optimizers.get(self.index)
        return None if form is None else form.optimizer_file(self.index)

    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        return self.run.form.optimizer_files(self._prepared({}), index=self.index, choices=choices)

    def read(self, saved: SavedRun, name: str) -> Mapping[str, Any]:
        """Read the state, which may be mapped from its file."""
        saved.check_class(self.key, self.index, self.of_class)
        form, prepared = saved.formats.optimizers[self.index], self._prepared(saved.names_in_file)
        return form.read_optimizer(saved.files, prepared, index=self.index)

    def load(self, content: Mapping[str, Any], saved: SavedRun) -> None:
        """Copy the state into the optimizer."""
        form, prepared = saved.formats.optimizers[self.index], self._prepared(saved.names_in_file)
        form.load_optimizer(prepared, content)

    def is_open(self, content: Any, saved: SavedRun) -> bool:
        return saved.formats.optimizers[self.index].opens_all

    def _prepared(self, names_in_file: Mapping[str, str]) -> PreparedOptimizer:
        return PreparedOptimizer(self.run.strategy, self.value, self.run.models, names_in_file)


class CustomItem(StateItem):
    """A registered object, whose state is one file that the main process writes."""

    kind = "custom object"
    key = "custom"
    file_of = staticmethod(custom_file)
    is_trained: ClassVar[bool] = False
    """Whether its values should be finite."""

    @staticmethod
    def indexes_in(saved: SavedRun) -> Collection[int]:
        return numbers_of_custom(saved.files.names)

    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        if not choices.is_writer:
            return []
        return [TorchFile(self.file, self.value.state_dict(), is_trained=self.is_trained)]

    def read(self, saved: SavedRun, name: str) -> Any:
        return saved.content(name)

    def load(self, content: Any, saved: SavedRun) -> None:
        self.value.load_state_dict(content)


class SchedulerItem(CustomItem):
    """A prepared scheduler."""

    kind = "scheduler"
    key = SCHEDULER_NAME
    file_of = staticmethod(partial(numbered_file, SCHEDULER_NAME))

    @staticmethod
    def indexes_in(saved: SavedRun) -> Collection[int]:
        return numbers_of(SCHEDULER_NAME, saved.files.names)

    @property
    def of_class(self) -> type:
        return type(getattr(self.value, "scheduler", self.value))

    def read(self, saved: SavedRun, name: str) -> Any:
        """Return the content of the file; torch's schedulers would load any dict."""
        saved.check_class(self.key, self.index, self.of_class)
        content = saved.content(name)
        for key in self.value.state_dict():
            if not key.startswith("_") and key not in content:
                raise ValueError(f"it has no `{key}`, so it is the state of another kind of scheduler")
        return content


class ScalerItem(CustomItem):
    """The gradient scaler, which the precision keeps."""

    kind = "gradient scaler"
    key = ""
    label = "the gradient scaler"
    is_trained = True

    @staticmethod
    def file_of(index: int) -> str:
        return SCALER_NAME

    @staticmethod
    def indexes_in(saved: SavedRun) -> Collection[int]:
        return [0] if SCALER_NAME in saved.files.names else []

    def report_missing(self, saved: SavedRun) -> None:
        note = f": it was saved without the gradient scaler that `mixed_precision={self.value.name}` uses"
        saved.report_missing(f"`{self.file}`", note=note)


@dataclass
class LoaderItem(StateItem):
    """A prepared loader. A checkpoint may have more or fewer of them."""

    number: int = 0
    """Number of its files: its own when saving; when loading, that of the loader saved in its place."""

    kind = "loader"
    file_of = staticmethod(partial(numbered_file, LOADER_NAME))

    @staticmethod
    def indexes_in(saved: SavedRun) -> Collection[int]:
        return numbers_of(LOADER_NAME, saved.files.names)

    @property
    def label(self) -> str:
        return f"loader {self.index}"

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

    def file_in(self, saved: SavedRun) -> str | None:
        """Return the name of this rank's file, or of the one that all ranks share; None if there is none."""
        if self._has_state_per_rank:
            of_rank = loader_of_rank_file(self.number, saved.rank)
            if of_rank in saved.files.names:
                return of_rank
        return super().file_in(saved)

    def save(self, choices: SaveChoices) -> Sequence[PendingFile]:
        """Return the main process's file, and a file of this rank if the ranks' states differ."""
        names = [self.file] if choices.is_writer else []
        if choices.rank > 0 and self._has_state_per_rank:
            names.append(loader_of_rank_file(self.number, choices.rank))
        content = to_file(self.value, is_under_way=self.is_under_way) if names else {}
        return [TorchFile(name, content) for name in names]

    def read(self, saved: SavedRun, name: str) -> tuple[str, Any]:
        return name, saved.content(name)

    def load(self, content: tuple[str, Any], saved: SavedRun) -> None:
        """Resume the loader, or let its epoch start over."""
        name, state = content
        is_of_another = saved.is_of_rank_0_alone and self._has_state_per_rank
        position = saved.restore_loaders and not is_of_another
        was_mid_epoch = load_into(self.value, state, position=position, file_name=name)
        if was_mid_epoch and not position:
            saved.restarted_loaders.append(self.label)

    def report_missing(self, saved: SavedRun) -> None:
        """Warn that the loader begins at its start, unless the checkpoint is of a package that saves no loaders."""
        if saved.found.manifest is not None:
            logger.warning(
                "The checkpoint has no state of %s. Skip what was read with `skip_first_batches`.", self.label
            )

    @property
    def _has_state_per_rank(self) -> bool:
        return isinstance(self.value, PreparedLoader) and self.value.has_state_per_rank


KINDS: Mapping[str, type[StateItem]] = MappingProxyType(
    {
        "models": ModelItem,
        "optimizers": OptimizerItem,
        "schedulers": SchedulerItem,
        "custom": CustomItem,
        "loaders": LoaderItem,
        "scaler": ScalerItem,
    }
)
"""By the names that users give them, in the order in which files that nothing was prepared for are listed."""


def model_items(run: RunObjects, models: Sequence[nn.Module]) -> list[ModelItem]:
    """Return an item for each of these models."""
    return [ModelItem(run, index, model) for index, model in enumerate(models)]


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
    """Return an item for each object that is no model, in the order in which they are loaded.

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
