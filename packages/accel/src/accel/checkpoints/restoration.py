"""Load a checkpoint into the prepared objects, after reading and checking all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from accel.checkpoints.inventory import check_inventory
from accel.checkpoints.load_choices import LoadChoices
from accel.checkpoints.model_files import ModelFiles
from accel.checkpoints.optimizer_files import OptimizerFiles
from accel.checkpoints.prepared import Prepared, class_name, has_state_per_rank
from accel.checkpoints.rank_state import RankState
from accel_backends.checkpoint_formats.choosing import format_of, format_of_optimizer, saved_models
from accel_checkpoint import file_names as layout
from accel_checkpoint.file_names import OPTIMIZER_NAME, SAMPLER_NAME, SCALER_NAME, SCHEDULER_NAME
from accel_checkpoint.files import files_below
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.reading.checked import checked_file
from accel_checkpoint.reading.listing import Found
from accel_checkpoint.reading.strictness import Strictness
from accel_data.loader_files import load_into
from accel_state.logging import get_logger
from accel_state.mesh_layout import MeshLayout

logger = get_logger(__name__)

Load = Callable[[], None]


@dataclass
class Restoration:
    """Loads one checkpoint into the objects of a run.

    Attributes:
        found: The checkpoint.
        prepared: The objects to load it into.
        rank: This process.
        layout: Layout of the processes.
        strict: Whether a mismatch is an error or a warning.
        restore_loaders: Whether loaders resume in the middle of an epoch.
        choices: Which parts to load.
    """

    found: Found
    prepared: Prepared
    rank: int
    layout: MeshLayout
    strict: Strictness
    restore_loaders: bool
    choices: LoadChoices

    def __post_init__(self) -> None:
        self._restarted_loaders: list[str] = []
        self.folder: Path = self.found.path
        self.names = list(files_below(self.folder))
        manifest = self.found.manifest
        self._objects: Mapping[str, Sequence[str]] = manifest.objects if manifest else {}

    def open(self, models: Sequence[nn.Module], opened: ExitStack) -> None:
        """Open the files until ``opened`` is closed, and check that they fit the models that no hook has loaded.

        Raises:
            CheckpointError: If something does not fit; names the file and the object.
        """
        found, names, prepared = self.found, self.names, self.prepared
        check_inventory(found, names, prepared, self.strict, self.choices, num_models=len(models))
        self._rank_state = RankState.read(found, names, prepared, self.rank, self.layout, self.strict)
        self.has_opened_all = not self._rank_state.was_accumulating
        indexes = [index for index in saved_models(names) if index < len(models)]
        self._loads = [
            *[self._opened_model(index, models[index], opened) for index in indexes],
            opened.close,
            *self._optimizers(),
            *self._schedulers(),
            *self._loaders(),
            *self._scaler(),
            *self._custom(),
        ]

    def load(self) -> None:
        """Load everything; random states come last, so that loading does not draw from them."""
        while self._loads:
            self._loads.pop(0)()  # popped, so that its mapped file is released
        self._rank_state.restore(self.prepared)
        if self._restarted_loaders:
            logger.warning(
                "The checkpoint was saved in the middle of an epoch of %s. That epoch starts over, in the same order. "
                "Skip the batches already read with `skip_first_batches`, or call `load_state` with "
                "`restore_loaders=True`.",
                ", ".join(self._restarted_loaders),
            )

    def _opened_model(self, index: int, model: nn.Module, opened: ExitStack) -> Load:
        """Open and check the files of a model, until ``opened`` is closed."""
        form = format_of(self.names, index=index)
        strict = Strictness(self.strict.is_strict and self.choices.strict_models)
        files = ModelFiles(self.prepared.strategy, model, form.model_file(index), index, strict)
        saved = opened.enter_context(form.open_model(self.folder, index=index))
        files.check(saved)
        self.has_opened_all &= form.opens_all
        return partial(files.load, saved)

    def _optimizers(self) -> Iterator[Load]:
        for index, optimizer in enumerate(self.prepared.optimizers if self.choices.optimizers else ()):
            kind = self.prepared.strategy.optimizer_class(optimizer)
            into = f"optimizer {index} ({kind.__name__})"
            form = format_of_optimizer(self.names, index=index)
            if form is None:
                continue
            name = form.optimizer_file(index)
            with self.strict.loading(name, into):
                files = OptimizerFiles(self.prepared, optimizer, form, index)
                self.has_opened_all &= form.opens_all
                state = files.read(self.folder)
                misfit = self._other_class(OPTIMIZER_NAME, index, kind) or files.misfit_of(state)
                if misfit is None:
                    yield self._into_optimizer(name, into, files, state)
                else:
                    self.strict.report(f"`{name}` does not fit {into}: {misfit}.")

    def _into_optimizer(self, name: str, into: str, files: OptimizerFiles, state: Mapping[str, Any]) -> Load:
        def load() -> None:
            with self.strict.loading(name, into):
                files.load(state)

        return load

    def _schedulers(self) -> Iterator[Load]:
        for index, scheduler in enumerate(self.prepared.schedulers if self.choices.schedulers else ()):
            name = layout.numbered_file(SCHEDULER_NAME, index)
            inner = getattr(scheduler, "scheduler", scheduler)
            other = self._other_class(SCHEDULER_NAME, index, type(inner)) if name in self.names else None
            if other is None:
                yield from self._plain(
                    name, f"scheduler {index} ({type(inner).__name__})", _into_scheduler(scheduler)
                )
            else:
                self.strict.report(f"`{name}` does not fit scheduler {index}: {other}.")

    def _loaders(self) -> Iterator[Load]:
        if f"{SAMPLER_NAME}.bin" in self.names:
            logger.warning(
                "`%s.bin` holds a pickled sampler, which could run code, and is not loaded.", SAMPLER_NAME
            )
        saved, loaders = layout.numbers_of(layout.LOADER_NAME, self.names), self.prepared.loaders_with_state()
        # The numbers differ if the run that saved had prepared other loaders before, such as one for each epoch.
        others = iter([number for number in saved if number not in dict(loaders)])
        for index, loader in loaders:
            number = index if index in saved else next(others, -1)
            name = layout.loader_of_rank_file(number, self.rank)
            if name not in self.names or not has_state_per_rank(loader):
                name = layout.numbered_file(layout.LOADER_NAME, number)
            if name not in self.names and self.found.manifest is not None:
                logger.warning(
                    "The checkpoint has no state of loader %s. Skip what was read with `skip_first_batches`.",
                    index,
                )
            yield from self._plain(name, f"loader {index}", partial(self._load_loader, index, loader, name))

    def _load_loader(self, index: int, loader: Any, name: str, content: Any) -> None:
        is_alone = self.found.manifest is not None and self.found.manifest.is_of_rank_0_alone
        position = self.restore_loaders and not (is_alone and has_state_per_rank(loader))
        was_mid_epoch = load_into(loader, content, position=position, file_name=name)
        if was_mid_epoch and not position:
            self._restarted_loaders.append(f"loader {index}")

    def _scaler(self) -> Iterator[Load]:
        if self.prepared.precision.scaler is not None:
            yield from self._plain(
                SCALER_NAME, "the gradient scaler", self.prepared.precision.load_state_dict
            )

    def _custom(self) -> Iterator[Load]:
        for index, one in enumerate(self.prepared.custom):
            into = f"custom object {index} ({type(one).__name__})"
            yield from self._plain(layout.custom_file(index), into, one.load_state_dict)

    def _plain(self, name: str, into: str, load: Callable[[Any], Any]) -> Iterator[Load]:
        """Read a file now, and yield a function that loads its content."""
        if name not in self.names:
            return
        with self.strict.loading(name, into):
            content = read_torch_file(checked_file(self.folder, name))

            def load_content() -> None:
                with self.strict.loading(name, into):
                    load(content)

            yield load_content

    def _other_class(self, objects: str, index: int, kind: type) -> str | None:
        saved = self._objects.get(objects, ())
        if index < len(saved) and saved[index].rpartition(".")[2] != kind.__name__:
            return f"it was saved from a `{saved[index]}`, which `{class_name(kind)}` is not"
        return None


def _into_scheduler(scheduler: Any) -> Callable[[Any], None]:
    """Return a function that loads a scheduler and checks the keys first, since torch's schedulers accept any dict."""

    def load(content: Any) -> None:
        missing = [
            name for name in scheduler.state_dict() if not name.startswith("_") and name not in content
        ]
        if missing:
            raise KeyError(f"it has no `{missing[0]}`, so it is the state of another kind of scheduler")
        scheduler.load_state_dict(content)

    return load
