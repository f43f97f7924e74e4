"""Save and load the complete state of a run."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from accel.configuration import ProjectConfiguration, RunConfiguration
from accel.prepared import Prepared
from accel_backends import Precision, Strategy
from accel_backends.stepping.stepper import Stepper
from accel_checkpoint.files import Digest, resolved
from accel_checkpoint.progress import watched
from accel_checkpoint.ranks.agreement import first
from accel_state import current_runtime
from accel_state.errors import CheckpointError, ConfigError
from accel_state.partial_state import ProcessView
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:  # the modules that save and load are imported by the first method that needs them
    from accel.checkpoints.items import SaveHook
    from accel.checkpoints.loading import LoadHook
    from accel.checkpoints.runs import RunObjects
    from accel_backends.checkpoint_formats.protocol import CheckpointFormat, SaveChoices
    from accel_checkpoint.manifest import Manifest
    from accel_checkpoint.saving.handle import SaveHandle
    from accel_checkpoint.saving.pending_files import PendingFile
    from accel_checkpoint.saving.retention import Retention
    from accel_checkpoint.saving.saver import Saver
    from accel_checkpoint.saving.transaction import Stage


class Checkpointer:
    """Checkpoints of a run: registered objects and hooks, the saver, and the number of the next checkpoint.

    Args:
        configuration: The configuration of the run.
        processes: The processes of the run.
        strategy: Has the state of models and optimizers.
        precision: Has the state of the gradient scaler.
        prepared: The prepared objects.
        stepper: Has the state of the accumulation.
        resumes_loaders: Whether `load` resumes loaders in the middle of their epoch by default.
    """

    def __init__(
        self,
        configuration: RunConfiguration,
        *,
        processes: ProcessView,
        strategy: Strategy,
        precision: Precision,
        prepared: Prepared,
        stepper: Stepper,
        resumes_loaders: Callable[[], bool],
    ) -> None:
        self.custom_objects: list[Any] = []
        self.project: ProjectConfiguration = configuration.project
        """Folders of the project, and how its checkpoints are named and kept."""
        # A script may change the working directory later. `Path.cwd()` raises if it was removed, so only if it is used.
        self._start = Path() if Path(self.project.project_dir or "/").is_absolute() else Path.cwd()
        self._processes = processes
        self._strategy = strategy
        self._precision = precision
        self._prepared = prepared
        self._stepper = stepper
        self._resumes_loaders = resumes_loaders
        self.save_hooks: OrderedDict[int, SaveHook] = OrderedDict()
        self.load_hooks: OrderedDict[int, LoadHook] = OrderedDict()
        self._saver: Saver | None = None
        self._formats: dict[str, Callable[[], CheckpointFormat]] = {}
        self._has_warned = False
        self._newest_number: int | None = None

    def register(self, *objects: Any) -> None:
        """Add `objects` to the state of the run; see `Accelerator.register_for_checkpointing`.

        Raises:
            ConfigError: If an object lacks one of the methods.
            CheckpointError: If a state could not be loaded again safely.
        """
        bad = [
            f"Item at index {index} ({type(item).__name__})"
            for index, item in enumerate(objects)
            if not callable(getattr(item, "state_dict", None))
            or not callable(getattr(item, "load_state_dict", None))
        ]
        if bad:
            raise ConfigError(
                "Only objects with `state_dict` and `load_state_dict` can be registered for checkpointing. "
                f"{', '.join(bad)} lack one. Implement both."
            )
        from accel_checkpoint.file_names import CUSTOM_OBJECTS
        from accel_checkpoint.strictness import MISMATCH_ERRORS
        from accel_checkpoint.tensors import check_plain

        for number, item in enumerate(objects, len(self.custom_objects)):
            state = None
            with suppress(*MISMATCH_ERRORS):  # a constructor may register `self` before its state is complete
                state = item.state_dict()
            check_plain(state, file_name=CUSTOM_OBJECTS.name(number))
        self.custom_objects.extend(objects)

    def save(
        self,
        output_dir: str | os.PathLike[str] | None,
        *,
        safe_serialization: bool,
        blocking: bool,
        metrics: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> str | SaveHandle:
        """Save a checkpoint; see `Accelerator.save_state`. Every rank must call it.

        Raises:
            CheckpointError: If saving failed on any rank.
            ConfigError: If there is no folder to save to, or it exists and is no checkpoint.
        """
        from accel_checkpoint.saving.saver import checked_metrics

        saver = self._get_saver()
        self._stepper.check_loaded("save_state")
        is_main = saver.topology.rank == 0
        run, choices = self._run_and_choices(options, safe=safe_serialization)
        # Before the first collective: an error on one rank after it would leave the other ranks waiting.
        numbers = checked_metrics(metrics, self.project.retention) if is_main else {}
        is_numbered, step = self.project.automatic_checkpoint_naming, self._stepper.num_windows
        token, number, absence = saver.call(
            "save_state",
            folder="" if is_numbered or output_dir is None else resolved(output_dir).name,
            step=step,
            number=self.project.iteration,
            needs_all=self._strategy.capabilities.shards_parameters or run.form.needs_shared_disk,
        )
        if is_numbered:
            self.project.iteration = number  # rank 0 may have saved more of them than this rank
        is_late = bool(absence) and not is_main
        target, retention = self._target(output_dir, may_exist=is_late)
        if is_late or (absence and not self._has_warned):
            self._has_warned = True
            warn_user(
                f"{absence}, so the main process saves `{target}` alone: without the random states of the "
                "other ranks, and their positions in data sets that shard themselves. Every rank should call it at "
                "about the same time: move it out of `if accelerator.is_main_process`.",
                main_process_only=False,
            )
        if is_late:
            self._count(number)
            from accel_checkpoint.saving.handle import SaveHandle

            return str(target) if blocking else SaveHandle(lambda: target, target=target).start()
        manifest = replace(_manifest_of(run), token=token, step=step, metrics=numbers)
        if is_numbered:
            manifest = replace(manifest, iteration=number)
        stage = saver.stage(target, manifest, retention=retention, blocking=blocking, is_alone=bool(absence))
        try:
            handle = self._write(stage, run, choices, number=number)
        except BaseException:
            # The number of a save in the background is used up, also if it fails.
            if blocking and is_numbered and not target.exists():
                self.project.iteration = number
            raise
        return str(target) if handle is None else handle

    def _count(self, number: int) -> None:
        if self.project.automatic_checkpoint_naming:
            self.project.iteration = number + 1

    @torch.inference_mode(False)  # torch cannot detach a `DTensor` in inference mode
    def _write(
        self, stage: Stage, run: RunObjects, choices: SaveChoices, *, number: int
    ) -> SaveHandle | None:
        """Write the files, on all ranks; return the handle if that is done in the background."""
        saver, is_sharded = self._get_saver(), self._strategy.capabilities.shards_parameters
        # Hooks on replicated models may run on rank 0 only.
        needs_all = is_sharded or run.form.needs_shared_disk
        value_of_rank_0 = partial(saver.agreement.agree_on, "value", merge=first) if needs_all else str
        with stage:
            files = partial(
                self._files_of_this_rank,
                run=run,
                target=stage.target,
                choices=choices,
                value_of_rank_0=value_of_rank_0,
            )
            stage.gather(files, is_collective=is_sharded)
            self._count(number)  # before the commit: after it, the number is in use
        return stage.handle

    def load(
        self,
        input_dir: str | os.PathLike[str] | None,
        *,
        missing_ok: bool,
        trusted: bool,
        restore_loaders: bool | None,
        load_kwargs: Mapping[str, Any] | None,
        engine_options: Mapping[str, Any],
        **options: Any,
    ) -> bool:
        """Load a checkpoint; see `Accelerator.load_state`. Every rank must call it.

        ``options`` are passed to `LoadOptions.of`.

        Raises:
            CheckpointError: On every rank, if any rank cannot load it.
            ConfigError: If an argument is unknown or has no effect.
        """
        from accel.checkpoints.loading import LoadOptions, load_checkpoint
        from accel.checkpoints.numbered import newest_checkpoint
        from accel_checkpoint.ranks.agreement import ReplacedError

        if restore_loaders is None:
            restore_loaders = self._resumes_loaders()
        how = LoadOptions.of(load_kwargs, engine_options, restore_loaders=restore_loaders, **options)
        current_runtime().await_arrival("load_state")
        saver = self._get_saver()
        if input_dir is not None and missing_ok:
            raise ConfigError(
                "`missing_ok` is for the newest checkpoint of the project. Leave `input_dir` out."
            )
        for is_last in (False, False, True):
            chosen = input_dir
            if chosen is None:
                chosen = newest_checkpoint(self._folder_of_checkpoints(), saver, missing_ok=missing_ok)
            if chosen is None:
                return False
            folder = resolved(chosen)
            label, is_shown = f"Loading {folder.name}", lambda: saver.topology.rank == 0
            shown = watched(label, lambda: Digest.num_bytes_of_all, is_shown=is_shown)
            try:
                # Tensors that optimizers create while they load must stay trainable.
                with torch.inference_mode(False), shown:
                    next_iteration = load_checkpoint(
                        self._run(),
                        folder,
                        saver=saver,
                        layout=current_runtime().layout,
                        hooks=tuple(self.load_hooks.values()),
                        options=how,
                        is_trusted=trusted or self._is_of_project(folder),
                        may_vanish=input_dir is None and not is_last,
                    )
                break
            except ReplacedError:
                if is_last:
                    raise
        if next_iteration is not None and self.project.automatic_checkpoint_naming:
            self.project.iteration = next_iteration
            self._newest_number = next_iteration - 1
        return True

    def _run_and_choices(self, options: Mapping[str, Any], *, safe: bool) -> tuple[RunObjects, SaveChoices]:
        """Return the objects to save and the save options, from the keyword arguments of `save_state`.

        Raises:
            ConfigError: If the format of the checkpoint knows no such argument.
        """
        from accel_backends.checkpoint_formats.protocol import SaveChoices

        given = dict(options)
        run = self._run(given.pop("checkpoint_format", None) or "")
        max_shard_size = given.pop("max_shard_size", None)
        of_format = run.form.save_arguments
        unknown = sorted(set(given) - of_format)
        if unknown:
            known = ["blocking", "metrics", "checkpoint_format", "max_shard_size", *sorted(of_format)]
            raise ConfigError(f"`save_state` knows no argument `{unknown[0]}`. Known: {', '.join(known)}.")
        return run, SaveChoices(
            rank=run.rank,
            is_writer=run.rank == 0,
            safe=safe,
            max_shard_size=max_shard_size,
            engine_options=given,
        )

    @property
    def is_model_writer(self) -> bool:
        """Whether this rank writes model files: rank 0, or each machine's with `save_on_each_node`."""
        processes = self._processes
        return (
            processes.is_local_main_process if self.project.save_on_each_node else processes.is_main_process
        )

    @torch.inference_mode(False)  # as `_write`
    def save_model(
        self,
        model: nn.Module,
        folder: str | os.PathLike[str],
        *,
        max_shard_size: int | str,
        safe_serialization: bool,
    ) -> None:
        """Write the weights of `model`; see `Accelerator.save_model`. If it is sharded, every rank must call it."""
        from accel_backends.fsdp.state import deferred_state
        from accel_checkpoint.saving.model_weights import save_weights

        is_sharded, name = self._strategy.capabilities.shards_parameters, resolved(folder).name
        if is_sharded:
            self._get_saver().call("save_model", folder=name, step=self._stepper.num_windows, needs_all=True)
        is_writer = self.is_model_writer
        bare = self._strategy.unwrap(model, keep_torch_compile=False)
        state = deferred_state(self._strategy.model_tensors(bare, as_computed=True), is_writer=is_writer)
        save_weights(state, folder, max_shard_size, safe_serialization, is_writer=is_writer)
        if is_sharded:
            self._processes.wait_for_everyone()

    def close(self) -> None:
        """Wait for the save under way, if any, and end the heartbeats; call it before the process group ends.

        Raises:
            CheckpointError: If it failed, and that has not been raised yet.
        """
        saver, self._saver = self._saver, None
        if saver is not None:
            saver.settle()

    def release_memory(self) -> None:
        """Release the copy that the last save in the background made."""
        if self._saver is not None:
            self._saver.release_memory()

    def _run(self, format_name: str = "") -> RunObjects:
        """Return the objects that have a state now, to be saved in that format or the strategy's."""
        from accel.checkpoints.runs import RunObjects

        strategy, prepared, runtime = self._strategy, self._prepared, current_runtime()
        name = format_name or strategy.checkpoint_format
        if name not in self._formats:
            from accel_backends.checkpoint_formats.protocol import FORMATS

            self._formats[name] = FORMATS.get(name)
        return RunObjects(
            strategy=strategy,
            precision=self._precision,
            stepper=self._stepper,
            accumulation=self._stepper.state_dict(),
            form=self._formats[name](),
            rank=runtime.topology.rank,
            device_index=runtime.device.index or 0,
            models=[strategy.unwrap(model, keep_torch_compile=False) for model in prepared.models],
            optimizers=prepared.optimizers,
            schedulers=prepared.schedulers,
            loaders=prepared.loaders,
            custom=self.custom_objects,
            resumes_loaders=self._resumes_loaders,
        )

    def _files_of_this_rank(
        self,
        stage: Stage,
        *,
        run: RunObjects,
        target: Path,
        choices: SaveChoices,
        value_of_rank_0: Callable[[str], str],
    ) -> list[PendingFile]:
        from accel.checkpoints.items import files_to_save

        if self.project.automatic_checkpoint_naming and choices.rank == 0:
            from accel.checkpoints.numbered import notice_other_run

            with suppress(OSError):  # it is not needed for the save
                self._newest_number = notice_other_run(target.parent, before=self._newest_number)
        has_own_disk = stage.place != 0
        is_spread = self.project.save_on_each_node and has_own_disk
        if stage.is_owner and has_own_disk and not is_spread:
            warn_user(
                f"This machine shares no disk with the main process's, so `{target}` has models and "
                "optimizers there only and cannot be loaded here. Set `save_on_each_node` in "
                "`ProjectConfiguration`.",
                main_process_only=False,
            )
        if has_own_disk and run.form.needs_shared_disk:
            raise CheckpointError(
                f"`{target}` is on a disk that this machine does not share with the main process's, but all ranks "
                f"write one checkpoint in the format `{run.form.name}`. Save to a disk that all machines share, "
                "or set `state_dict_type` to `FULL_STATE_DICT`."
            )
        return files_to_save(
            run,
            stage.path,
            replace(choices, is_writer=choices.is_writer or (is_spread and stage.is_owner)),
            hooks=tuple(self.save_hooks.values()),
            value_of_rank_0=value_of_rank_0,
        )

    def _get_saver(self) -> Saver:
        if self._saver is None:
            from accel_checkpoint.saving.saver import Saver

            self._saver = Saver.of_run()
        return self._saver

    def _is_of_project(self, folder: Path) -> bool:
        """Whether a folder is in the run's folder of checkpoints."""
        own = self._folder_of_checkpoints()
        return own is not None and folder.is_relative_to(own.resolve())

    def _folder_of_checkpoints(self) -> Path | None:
        from accel_checkpoint.file_names import FOLDER_OF_CHECKPOINTS

        folder = self.project.project_dir
        return None if folder is None else self._start / folder / FOLDER_OF_CHECKPOINTS

    def _target(
        self, output_dir: str | os.PathLike[str] | None, *, may_exist: bool
    ) -> tuple[Path, Retention | None]:
        """Return the path of the checkpoint, and the retention of numbered checkpoints."""
        from accel_checkpoint.saving.retention import Retention

        project = self.project
        if project.automatic_checkpoint_naming:
            from accel.checkpoints.numbered import target_of

            folder = self._folder_of_checkpoints()
            target = target_of(project.iteration, folder, output_dir=output_dir, may_exist=may_exist)
            return target, project.retention or Retention(newest=project.total_limit)
        if output_dir is None:
            raise ConfigError(
                "`save_state` does not know where to save: pass `output_dir`, or let the project name its "
                "checkpoints with `ProjectConfiguration(project_dir=…, automatic_checkpoint_naming=True)`."
            )
        return resolved(output_dir), None


def add_hook(hooks: OrderedDict[int, Any], hook: Any) -> RemovableHandle:
    """Add a hook to `save_hooks` or `load_hooks`."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _manifest_of(run: RunObjects) -> Manifest:
    """Return the manifest of a checkpoint of the run, without its files."""
    from accel.checkpoints.items import class_names
    from accel_checkpoint.manifest import Manifest

    return Manifest(
        (),
        mesh=asdict(current_runtime().layout),
        strategy=run.strategy.name,
        model_format=run.form.name,
        objects=class_names(run),
    )
