"""Save and load the whole state of a run; `accel.checkpoints` does the work."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from torch import nn
from torch.utils.hooks import RemovableHandle

import accel_ops
from accel.configuration import RunConfiguration
from accel.prepared_loaders import PreparedLoaders
from accel.project import ProjectConfiguration
from accel_backends import Precision, Strategy
from accel_backends.stepping.stepper import Stepper
from accel_state import GradientState, PartialState, current_runtime
from accel_state.errors import ConfigError

if TYPE_CHECKING:  # what saves and loads is imported by the first method that needs it
    from accel.checkpoints.collection import SaveHook
    from accel.checkpoints.loader import LoadHook
    from accel.checkpoints.prepared import Prepared
    from accel.preemption import Preemption
    from accel_checkpoint.saving.handle import SaveHandle
    from accel_checkpoint.saving.pending_files import PendingFile
    from accel_checkpoint.saving.saver import Saver
    from accel_checkpoint.saving.stage import Stage
    from accel_checkpoint.saving.transaction import Request


class Checkpointing:
    """Checkpoints of this run."""

    configuration: RunConfiguration
    processes: PartialState
    gradient_state: GradientState
    _strategy: Strategy
    _precision: Precision
    _stepper: Stepper
    _models: list[nn.Module]
    _optimizers: list[Any]
    _schedulers: list[Any]
    _dataloaders: PreparedLoaders
    _preemption: Preemption | None

    def _set_up_checkpointing(self) -> None:
        self._custom_objects: list[Any] = []
        self._save_hooks: OrderedDict[int, SaveHook] = OrderedDict()
        self._load_hooks: OrderedDict[int, LoadHook] = OrderedDict()
        self._checkpoint_saver: Saver | None = None

    @property
    def project_configuration(self) -> ProjectConfiguration:
        """Folders of the project, and how its checkpoints are named and kept."""
        return self.configuration.project

    @property
    def save_iteration(self) -> int:
        """Number of the next checkpoint that is named by number."""
        return self.configuration.project.iteration

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and load the states of `objects` with the rest, in the order in which they are registered.

        Args:
            *objects: Anything with `state_dict` and `load_state_dict`, whose state is tensors, numbers,
                strings and containers of these.

        Raises:
            ConfigError: Naming those that have not both methods.
        """
        bad = [
            f"number {index} ({type(one).__name__})"
            for index, one in enumerate(objects)
            if not callable(getattr(one, "state_dict", None))
            or not callable(getattr(one, "load_state_dict", None))
        ]
        if bad:
            raise ConfigError(
                "Only objects with `state_dict` and `load_state_dict` can be registered for checkpointing, which "
                f"these have not: {', '.join(bad)}. Give them both."
            )
        self._custom_objects.extend(objects)

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """Call `hook(models, weights, output_dir)` on every rank before a checkpoint is written.

        Weights that it takes out of the list `weights` are its own to save, into `output_dir`: the folder in
        which the checkpoint grows, which gets its final name when all is there.

        Returns:
            A handle whose `remove()` ends this.
        """
        return _register(self._save_hooks, hook)

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """Call `hook(models, input_dir)` on every rank before a checkpoint is loaded.

        Models that it takes out of the list `models` are its own to load.

        Returns:
            A handle whose `remove()` ends this.
        """
        return _register(self._load_hooks, hook)

    @overload
    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = ...,
        safe_serialization: bool = ...,
        *,
        blocking: Literal[True] = ...,
        **save_model_func_kwargs: Any,
    ) -> str: ...
    @overload
    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = ...,
        safe_serialization: bool = ...,
        *,
        blocking: Literal[False],
        **save_model_func_kwargs: Any,
    ) -> SaveHandle: ...

    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        safe_serialization: bool = True,
        *,
        blocking: bool = True,
        **save_model_func_kwargs: Any,
    ) -> str | SaveHandle:
        """Save models, optimizers, schedulers, loaders, scaler, random states and registered objects.

        Every rank must call it. The checkpoint is written beside its place and appears there complete, in one
        step; a checkpoint of the same name, and older ones beyond `total_limit`, go only after that. If the
        save fails, what was there before is as it was.

        Args:
            output_dir: Its folder. Not to be given if the project names checkpoints by itself: then it is
                `checkpoints/checkpoint_<iteration>` in the project's folder.
            safe_serialization: Weights as safetensors; else by `torch.save`.
            blocking: Return when it is there. Otherwise return when its content has been copied, and write
                while the training goes on, with what it leaves of the processors.
            **save_model_func_kwargs: `max_shard_size`, such as `"5GB"`: split larger weights into several files.

        Returns:
            The folder; or without `blocking` a handle with `done()`, `wait()` and `exception()`.

        Raises:
            CheckpointError: On every rank, if it failed on any, with that rank's reason; without `blocking` the
                handle raises it, or the next save does. So it is raised, too, if the last save that did not
                block has failed and nobody has asked for its end.
            ConfigError: If there is no folder to save to, or it is taken.
        """
        from accel.checkpoints.collection import SaveOptions, collect

        unknown = sorted(set(save_model_func_kwargs) - {"max_shard_size"})
        if unknown:
            raise ConfigError(
                f"`save_state` knows no argument `{unknown[0]}`. Known: blocking, max_shard_size."
            )
        options = SaveOptions(
            safe_serialization=safe_serialization,
            hooks=tuple(self._save_hooks.values()),
            **save_model_func_kwargs,
        )
        saver = self._saver()
        request = self._save_request(output_dir)

        def files_of_this_rank(stage: Stage) -> list[PendingFile]:
            prepared = self._prepared_state()
            stage.describe(prepared.class_names())
            spreads = self.configuration.project.save_on_each_node and stage.place != 0
            if stage.is_owner and stage.place != 0 and not spreads:
                warnings.warn(
                    f"This machine shares no disk with the main process's, so `{request.target}` has models and "
                    "optimizers there only and cannot be loaded here. Set `save_on_each_node` in "
                    "`ProjectConfiguration`.",
                    stacklevel=2,
                )
            return collect(
                prepared,
                stage.path,
                rank=self.processes.process_index,
                is_writer=self.processes.is_main_process or (spreads and stage.is_owner),
                options=options,
            )

        stage = saver.stage(request, blocking=blocking, earlier=saver.unreported_failure())
        try:
            with stage:
                stage.gather(files_of_this_rank)
        except BaseException:
            # The number is used up behind the loop, and where what failed came after the checkpoint.
            if not blocking or request.target.exists():
                self._count_save(request)
            raise
        self._count_save(request)
        return str(request.target) if stage.handle is None else stage.handle

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: Mapping[str, Any] | None = None,
        *,
        verify: bool = False,
        strict: bool = True,
        restore_loaders: bool | None = None,
        **load_model_func_kwargs: Any,
    ) -> None:
        """Load a checkpoint into what was prepared and registered, the same objects in the same order.

        Every rank must call it. Nothing in the files can run. Checkpoints written by Accelerate are loaded too.

        Args:
            input_dir: Its folder; the newest complete one of the project where left out.
            load_kwargs: `map_location` and `weights_only`, for those who pass them: all is read to the CPU
                first, and never unpickled freely.
            verify: Read everything and compare digests first.
            strict: What is missing, left over or does not fit is an error. Otherwise it is a warning each, and
                the rest is loaded.
            restore_loaders: Let loaders that were in the middle of an epoch go on there. Otherwise that epoch begins
                anew, in the same order, for scripts that skip what they have read. Where left out: with
                `use_stateful_dataloader`, and after `handle_preemption`.
            **load_model_func_kwargs: None are known.

        Raises:
            CheckpointError: On every rank, if any cannot load it, naming the file and the object.
        """
        from accel.checkpoints.loader import check_load_arguments, load_checkpoint

        check_load_arguments(load_kwargs, load_model_func_kwargs)
        saver = self._saver()
        saver.settle()
        next_iteration = load_checkpoint(
            self._prepared_state(),
            None if input_dir is None else Path(input_dir),
            folder_of_checkpoints=self._folder_of_checkpoints(),
            saver=saver,
            layout=current_runtime().layout,
            hooks=tuple(self._load_hooks.values()),
            verify=verify,
            is_strict=strict,
            restore_loaders=self._restores_loaders if restore_loaders is None else restore_loaders,
        )
        if next_iteration is not None and self.configuration.project.automatic_checkpoint_naming:
            self.configuration.project.iteration = next_iteration

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Write `obj` to a file, on the main process only (on each machine's with `save_on_each_node`).

        Args:
            obj: What to write; tensors by name with `safe_serialization`.
            f: The file.
            safe_serialization: safetensors, else `torch.save`.
        """
        from accel_checkpoint.functions import save

        on_each_node = self.configuration.project.save_on_each_node
        save(obj, f, save_on_each_node=on_each_node, safe_serialization=safe_serialization)

    @property
    def _restores_loaders(self) -> bool:
        return self.configuration.loader.use_stateful_dataloader or self._preemption is not None

    def _saver(self) -> Saver:
        if self._checkpoint_saver is None:
            from accel_checkpoint.ranks.agreement import agreement_of
            from accel_checkpoint.saving.saver import Saver

            topology = current_runtime().topology
            agreement = agreement_of(
                rank=topology.rank, world_size=topology.world_size, gather=accel_ops.gather_object
            )
            self._checkpoint_saver = Saver(topology=topology, agreement=agreement)
        return self._checkpoint_saver

    def _finish_saving(self) -> None:
        """Wait for the save under way; call it before the process group ends."""
        if self._checkpoint_saver is not None:
            self._checkpoint_saver.settle()

    def _prepared_state(self) -> Prepared:
        from accel.checkpoints.prepared import Prepared

        return Prepared(
            strategy=self._strategy,
            precision=self._precision,
            device=current_runtime().device,
            models=self._models,
            optimizers=self._optimizers,
            schedulers=self._schedulers,
            loaders=list(self._dataloaders),
            custom=self._custom_objects,
            stepper=self._stepper,
            active_loaders=self.gradient_state.dataloader_references,
        )

    def _folder_of_checkpoints(self) -> Path | None:
        from accel_checkpoint.file_names import FOLDER_OF_CHECKPOINTS

        folder = self.configuration.project.project_dir
        return None if folder is None else Path(folder) / FOLDER_OF_CHECKPOINTS

    def _save_request(self, output_dir: str | os.PathLike[str] | None) -> Request:
        from accel_checkpoint.file_names import checkpoint_name
        from accel_checkpoint.reading.selection import is_part
        from accel_checkpoint.saving.transaction import Request

        project, mesh = self.configuration.project, current_runtime().layout.sizes
        if not project.automatic_checkpoint_naming:
            if output_dir is None:
                raise ConfigError(
                    "`save_state` does not know where to save: pass `output_dir`, or let the project name its "
                    "checkpoints with `ProjectConfiguration(project_dir=…, automatic_checkpoint_naming=True)`."
                )
            return Request(Path(output_dir).resolve(), token="", step=self._stepper.num_windows, mesh=mesh)
        if output_dir is not None:
            warnings.warn(
                f"`output_dir={os.fspath(output_dir)!r}` has no effect: the project names its checkpoints by itself. "
                "Leave it out, or turn `automatic_checkpoint_naming` off.",
                stacklevel=3,
            )
        folder = self._folder_of_checkpoints()
        if folder is None:
            raise ConfigError(
                "`automatic_checkpoint_naming` needs a `project_dir`. Give the Accelerator one."
            )
        target = folder.resolve() / checkpoint_name(project.iteration)
        # Of a machine's part whose whole never came, the main process knows nothing: it goes when this one is there.
        if target.exists() and not is_part(target):
            raise ConfigError(
                f"The checkpoint `{target}` is there already. Load it to go on from it, or set "
                "`accelerator.project_configuration.iteration` to the number to go on with."
            )
        return Request(
            target,
            token="",
            keep=project.total_limit,
            step=self._stepper.num_windows,
            iteration=project.iteration,
            mesh=mesh,
        )

    def _count_save(self, request: Request) -> None:
        if request.iteration is not None:
            self.configuration.project.iteration = request.iteration + 1


def _register(hooks: OrderedDict[int, Any], hook: Callable[..., Any]) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
