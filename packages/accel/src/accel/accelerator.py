"""The object that a training script holds: it decides once how the run goes, and delegates the rest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from accel.configuration import (
    NOT_GIVEN,
    RunConfiguration,
    check_axes,
    resolve_accumulation,
    resolve_dynamo,
    resolve_engine,
    resolve_loader,
    resolve_project,
    resolve_rng_types,
)
from accel.faces import face
from accel.parts.checkpointing import Checkpointing
from accel.parts.data import DataMoving
from accel.parts.engines import EngineFacts
from accel.parts.preempting import Preempting
from accel.parts.preparation import Preparation
from accel.parts.process import ProcessControl
from accel.parts.saving import Saving
from accel.parts.settings import Settings
from accel.parts.stepping import Stepping
from accel.prepared_loaders import PreparedLoaders
from accel.project import ProjectConfiguration
from accel_backends import (
    CompileTransform,
    SchedulerSettings,
    Strategy,
    StrategyContext,
    TorchDynamoPlugin,
    collect,
    select_precision,
    select_strategy,
)
from accel_backends.stepping.stepper import Stepper
from accel_backends.stepping.weighted_loss import WeightedLoss
from accel_data import DataLoaderConfiguration
from accel_state import (
    AcceleratorState,
    GradientAccumulationPlugin,
    GradientState,
    PartialState,
    current_runtime,
)
from accel_state.enums import DynamoBackend, LoggerType, PrecisionType, RNGType
from accel_state.environment import read
from accel_state.kwargs_handler import KwargsHandler
from accel_trackers import filter_trackers

if TYPE_CHECKING:  # what only annotations name is not imported
    from accel_state import ParallelismConfig
    from accel_trackers import GeneralTracker


class Accelerator(
    ProcessControl,
    EngineFacts,
    Settings,
    Preparation,
    Stepping,
    DataMoving,
    Preempting,
    Saving,
    Checkpointing,
):
    """Run one training or inference script unchanged on whatever it was started on.

    Args:
        device_placement: Move prepared models, optimizer states and batches to this process's device.
        split_batches: Older place of `DataLoaderConfiguration.split_batches`.
        mixed_precision: `no`, `fp16`, `bf16` or `fp8`; what the launcher said where not given.
        gradient_accumulation_steps: Micro-batches whose gradients are summed before the optimizer steps.
        cpu: Stay on the CPU although an accelerator is there.
        dataloader_config: How loaders are split over the processes.
        deepspeed_plugin: Train with DeepSpeed.
        fsdp_plugin: Train with parameters sharded over the processes.
        torch_tp_plugin: Train with tensor parallelism.
        megatron_lm_plugin: Train with Megatron-LM.
        rng_types: Generators that every rank sets alike at the start of an epoch.
        log_with: Trackers, by name, class or instance, or `all`.
        project_dir: Folder for everything the run writes.
        project_config: Folders, and how checkpoints are named and kept.
        gradient_accumulation_plugin: Accumulation with its finer choices.
        step_scheduler_with_optimizer: Whether schedulers are stepped as often as optimizers.
        kwargs_handlers: Settings of parts: DDP, autocast, gradient scaler, process group, profiler.
        dynamo_backend: Compile models with this backend.
        dynamo_plugin: Compile models, with finer choices.
        deepspeed_plugins: Several DeepSpeed configurations by name.
        parallelism_config: How the processes are split over the axes of parallelism.
        scheduler_unit: How far a prepared scheduler moves in one step. `process`: once per process, so that a
            schedule counted in one process's batches ends on time with several; the learning rate at a given
            sample then depends on how many there are. `optimizer_step`: once, as in plain PyTorch.

    Raises:
        ConfigError: If arguments contradict each other, or ask for what is not there.
        StateError: If an earlier `Accelerator` of this process was built otherwise.
    """

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = NOT_GIVEN,
        mixed_precision: PrecisionType | str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        rng_types: Sequence[str | RNGType] | None = None,
        log_with: str
        | LoggerType
        | GeneralTracker
        | Sequence[str | LoggerType | GeneralTracker]
        | None = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Sequence[KwargsHandler] | None = None,
        dynamo_backend: DynamoBackend | str | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugins: Any = None,
        parallelism_config: ParallelismConfig | None = None,
        *,
        scheduler_unit: Literal["process", "optimizer_step"] = "process",
    ) -> None:
        plugin, strategy = resolve_engine(
            {
                "deepspeed_plugin": deepspeed_plugin or deepspeed_plugins,
                "fsdp_plugin": fsdp_plugin,
                "torch_tp_plugin": torch_tp_plugin,
                "megatron_lm_plugin": megatron_lm_plugin,
            }
        )
        self._handlers = dict(collect(kwargs_handlers))
        self.configuration = RunConfiguration(
            accumulation=resolve_accumulation(gradient_accumulation_steps, gradient_accumulation_plugin),
            loader=resolve_loader(split_batches, dataloader_config),
            project=resolve_project(project_dir, project_config),
            dynamo=resolve_dynamo(dynamo_backend, dynamo_plugin),
            handlers=MappingProxyType(self._handlers),
            rng_types=resolve_rng_types(rng_types),
            plugin=plugin,
            strategy=strategy,
            device_placement=device_placement,
            is_device_map_allowed=read("bypass_device_map"),
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            scheduler_unit=scheduler_unit,
        )
        group = self.configuration.process_group
        self.state = AcceleratorState(
            mixed_precision=mixed_precision,
            cpu=cpu,
            dynamo_plugin=self.configuration.dynamo,
            deepspeed_plugin=deepspeed_plugin or deepspeed_plugins,
            fsdp_plugin=fsdp_plugin,
            torch_tp_plugin=torch_tp_plugin,
            megatron_lm_plugin=megatron_lm_plugin,
            parallelism_config=parallelism_config,
            _from_accelerator=True,
            **(group.to_kwargs() if group is not None else {}),
        )
        self.processes = PartialState()
        self.gradient_state = GradientState(self.configuration.accumulation)
        self._models, self._optimizers, self._schedulers = [], [], []
        self._dataloaders = PreparedLoaders()
        self._untrained = WeakSet()
        self._start_engine()
        self.log_with = filter_trackers(log_with, self.logging_dir)
        self._trackers = []
        self._background = None
        self._trigger = False
        self._preemption = None
        self._set_up_checkpointing()

    @property
    def strategy(self) -> Strategy:
        """How models are trained here."""
        return self._strategy

    def end_training(self) -> None:
        """Wait for the checkpoint under way, write out and close all trackers, then end the process group.

        Every rank must call it.

        Raises:
            CheckpointError: If the checkpoint failed; all is closed and the group is ended first.
            TrackerError: If a tracker failed to log something; likewise.
        """
        with ExitStack() as ending:
            ending.callback(super().end_training)
            self._finish_saving()

    def _start_engine(self) -> None:
        """Pick precision and strategy, and bind what the training step uses."""
        runtime = current_runtime()
        self._precision = select_precision(
            self.state.mixed_precision,
            device_backend=runtime.device_backend,
            handlers=self.configuration.handlers,
        )
        self._strategy = select_strategy(
            self.configuration.strategy, topology=runtime.topology, plugin=self.configuration.plugin
        )
        self._strategy.setup(
            StrategyContext(
                runtime,
                precision=self._precision,
                handlers=self.configuration.handlers,
                plugin=self.configuration.plugin,
                device_placement=self.configuration.device_placement,
                make_loader=self.prepare_data_loader,
                scheduling=SchedulerSettings(
                    step_with_optimizer=self.configuration.step_scheduler_with_optimizer,
                    split_batches=self.configuration.loader.split_batches,
                    unit=self.configuration.scheduler_unit,
                ),
                transforms=(CompileTransform(self.configuration.dynamo),),
            )
        )
        check_axes(self.state.parallelism_config, self._strategy)
        layout, mesh = runtime.layout, self.state.device_mesh
        is_part = 1 < layout.num_loss_ranks < layout.world_size
        group = mesh["loss"].get_group() if mesh is not None and is_part else None
        self._stepper = Stepper(
            strategy=self._strategy,
            precision=self._precision,
            gradient=self.gradient_state,
            weights=WeightedLoss(num_ranks=layout.num_loss_ranks, device=runtime.device, group=group),
            models=self._models,
            optimizers=self._optimizers,
            on_window_end=self._advance_preemption,
        )


__getattr__, __dir__, __all__ = face(__name__)
