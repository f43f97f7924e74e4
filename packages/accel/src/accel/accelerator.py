"""The object that a training script holds: it is made of the components of a run, and delegates to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

import accel_backends
import accel_data
import accel_ops
from accel.checkpoints.checkpointer import Checkpointer
from accel.preemption.guard import PreemptionGuard
from accel.run import engine
from accel.run.configuration import NOT_GIVEN, RunConfiguration, one_of, resolve
from accel.run.configuration import ProjectConfiguration as ProjectConfiguration
from accel.run.prepared import PreparedObjects, Preparer
from accel.run.profiling import traced
from accel.run.throughput import Throughput, device_name, peak_flops
from accel.run.trackers import Trackers, attempt_all
from accel_backends import AORecipeKwargs as AORecipeKwargs
from accel_backends import AutocastKwargs as AutocastKwargs
from accel_backends import DistributedDataParallelKwargs as DistributedDataParallelKwargs
from accel_backends import FP8RecipeKwargs as FP8RecipeKwargs
from accel_backends import GradScalerKwargs as GradScalerKwargs
from accel_backends import ProfileKwargs as ProfileKwargs
from accel_backends import Strategy
from accel_backends import TERecipeKwargs as TERecipeKwargs
from accel_backends import TorchDynamoPlugin as TorchDynamoPlugin
from accel_backends.stepping.stepper import Stepper
from accel_backends.strategies.prepare_checks import has_device_map
from accel_backends.strategies.protocol import Sync
from accel_data import DataLoaderConfiguration as DataLoaderConfiguration
from accel_state import AcceleratorState as AcceleratorState
from accel_state import GradientAccumulationPlugin as GradientAccumulationPlugin
from accel_state import GradientState as GradientState
from accel_state import PartialState as PartialState
from accel_state import current_runtime
from accel_state.enums import DistributedType as DistributedType
from accel_state.enums import DynamoBackend as DynamoBackend
from accel_state.enums import FP8BackendType as FP8BackendType
from accel_state.enums import LoggerType as LoggerType
from accel_state.enums import PrecisionType as PrecisionType
from accel_state.enums import RNGType as RNGType
from accel_state.kwargs_handler import InitProcessGroupKwargs as InitProcessGroupKwargs
from accel_state.kwargs_handler import KwargsHandler as KwargsHandler
from accel_state.lazy import attach_stub
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:  # what only annotations name is not imported
    from accel.accelerator_names import *  # noqa: F403  (further names that users import from here)
    from accel.checkpoints.loading import LoadHook
    from accel.checkpoints.saving import SaveHook
    from accel.preemption.preemption import Preemption
    from accel_backends import FullyShardedDataParallelPlugin as FullyShardedDataParallelPlugin
    from accel_backends import TorchTensorParallelPlugin as TorchTensorParallelPlugin
    from accel_checkpoint.saving.handle import SaveHandle
    from accel_state import ParallelismConfig as ParallelismConfig
    from accel_trackers import GeneralTracker as GeneralTracker
    from accel_trackers import OnError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

# Attributes that scripts assign, and what they belong to.
_HANDLERS: dict[str, type[KwargsHandler]] = {
    "autocast_handler": AutocastKwargs,
    "scaler_handler": GradScalerKwargs,
    "init_handler": InitProcessGroupKwargs,
    "profile_handler": ProfileKwargs,
    "ddp_handler": DistributedDataParallelKwargs,
    "ao_recipe_handler": AORecipeKwargs,
    "te_recipe_handler": TERecipeKwargs,
    "fp8_recipe_handler": FP8RecipeKwargs,
}
_LATE = ("autocast_handler", "profile_handler", "ddp_handler")  # those read after the Accelerator is built
_LISTS = {
    "_models": "_prepared.models",
    "_optimizers": "_prepared.optimizers",
    "_schedulers": "_prepared.schedulers",
    "_dataloaders": "_prepared.loaders",
    "_custom_objects": "_checkpointer.custom_objects",
}
_OWNERS = {
    "scaler": ("_precision", "scaler"),
    "step_scheduler_with_optimizer": ("configuration.scheduling", "step_with_optimizer"),
    "dataloader_config": ("configuration", "loader"),
    "project_configuration": ("configuration", "project"),
    "rng_types": ("configuration", "rng_types"),
    "device_placement": ("configuration", "device_placement"),
    "even_batches": ("configuration.loader", "even_batches"),
    "_save_model_state_pre_hook": ("_checkpointer", "save_hooks"),
    "_load_model_state_pre_hook": ("_checkpointer", "load_hooks"),
}


class Accelerator:
    """Run one training or inference script unchanged on whatever it was started on.

    Args:
        device_placement: Move prepared models, optimizer states and batches to this process's device.
        split_batches: Older place of `DataLoaderConfiguration.split_batches`.
        mixed_precision: `no`, `fp16`, `bf16` or `fp8`; what the launcher said where not given.
        gradient_accumulation_steps: Micro-batches whose gradients are summed before the optimizer steps.
        cpu: Stay on the CPU although an accelerator is there.
        dataloader_config: How loaders are split over the processes.
        deepspeed_plugin: Train with DeepSpeed; or a dict of several plugins by name, of which the first is selected.
        fsdp_plugin: Train with parameters sharded over the processes, on any device.
        torch_tp_plugin: Older place of `ParallelismConfig.tp_size`.
        megatron_lm_plugin: Train with Megatron-LM.
        rng_types: Generators that every rank sets alike at the start of an epoch.
        log_with: Trackers, by name, class or instance, or `all`.
        project_dir: Folder for everything the run writes.
        project_config: Folders, and how checkpoints are named and kept.
        gradient_accumulation_plugin: Accumulation with its finer choices.
        step_scheduler_with_optimizer: Whether schedulers are stepped as often as optimizers.
        kwargs_handlers: Settings of parts: DDP, autocast, gradient scaler, process group, profiler, 8-bit training.
        dynamo_backend: Compile models with this backend.
        dynamo_plugin: Compile models, with finer choices.
        deepspeed_plugins: The same as ``deepspeed_plugin``.
        parallelism_config: How the processes are split over the axes of parallelism.
        scheduler_unit: How far a prepared scheduler moves in one step. `process`: once per process, so that a
            schedule counted in one process's batches ends on time with several; the learning rate at a given
            sample then depends on how many there are. `optimizer_step`: once, as in plain PyTorch.
        fp8_backend: Which library computes in 8 bits: `AO` (torchao) or `TE` (Transformer Engine); its handler
            in ``kwargs_handlers`` says the same, with its settings.
        strategy_plugin: Train with a strategy of another package, which the class attribute ``strategy`` of this object
            names; it finds its settings there.

    Raises:
        ConfigError: If arguments contradict each other, or ask for what is not there.
        StateError: If an earlier `Accelerator` of this process was built otherwise.
    """

    configuration: RunConfiguration
    state: AcceleratorState
    processes: PartialState
    gradient_state: GradientState

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = NOT_GIVEN,
        mixed_precision: PrecisionType | str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: FullyShardedDataParallelPlugin | None = None,
        torch_tp_plugin: TorchTensorParallelPlugin | None = None,
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
        fp8_backend: FP8BackendType | str | None = None,
        strategy_plugin: Any = None,
    ) -> None:
        given = dict(locals())
        self._arguments = {
            name: given[name] for name in given if name != "self" and given[name] is not NOT_GIVEN
        }
        plugins = {
            "deepspeed_plugin": one_of(
                deepspeed_plugin=deepspeed_plugin, deepspeed_plugins=deepspeed_plugins
            ),
            "fsdp_plugin": fsdp_plugin,
            "megatron_lm_plugin": megatron_lm_plugin,
            "strategy_plugin": strategy_plugin,
        }
        self.configuration = resolve(
            device_placement=device_placement,
            split_batches=split_batches,
            gradient_accumulation_steps=gradient_accumulation_steps,
            dataloader_config=dataloader_config,
            plugins=plugins,
            earlier_plugins=engine.earlier_plugins(),
            torch_tp_plugin=torch_tp_plugin,
            parallelism_config=parallelism_config,
            rng_types=rng_types,
            project_dir=project_dir,
            project_config=project_config,
            gradient_accumulation_plugin=gradient_accumulation_plugin,
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            kwargs_handlers=kwargs_handlers,
            dynamo_backend=dynamo_backend,
            dynamo_plugin=dynamo_plugin,
            scheduler_unit=scheduler_unit,
            fp8_backend=fp8_backend,
        )
        self.state = engine.make_state(self.configuration, mixed_precision=mixed_precision, cpu=cpu)
        self.processes = PartialState()
        self.gradient_state = GradientState(self.configuration.accumulation)
        self._make_components()
        self._trackers = Trackers(log_with, logging_dir=self.logging_dir, processes=self.processes)

    def _make_components(self) -> None:
        """Make the components, each from those that it needs."""
        configuration, processes = self.configuration, self.processes
        self._is_triggered = False
        self._precision = engine.make_precision(configuration, self.state)
        self._strategy = engine.make_strategy(
            configuration, self.state, precision=self._precision, make_loader=self.prepare_data_loader
        )
        self._prepared = PreparedObjects(self._strategy)
        self._preemption = PreemptionGuard(self._prepared.loaders, end=self.end_training)
        self._stepper = Stepper(
            strategy=self._strategy,
            precision=self._precision,
            gradient=self.gradient_state,
            weights=engine.make_weighted_loss(self.state),
            models=self._prepared.models,
            optimizers=self._prepared.optimizers,
            num_processes=processes.num_processes,
            on_window_end=self._preemption.advance,
        )
        self._preparer = Preparer(
            configuration,
            processes=processes,
            strategy=self._strategy,
            prepared=self._prepared,
            stepper=self._stepper,
            preemption=self._preemption,
        )
        self._checkpointer = Checkpointer(
            configuration,
            processes=processes,
            strategy=self._strategy,
            precision=self._precision,
            prepared=self._prepared,
            stepper=self._stepper,
            gradient_state=self.gradient_state,
            preemption=self._preemption,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. What a component owns changes there: scripts written for Accelerate assign these."""
        if name in _HANDLERS:
            if name not in _LATE:
                warn_user(
                    f"`{name}` has no effect any more: the Accelerator is built. Pass it in `kwargs_handlers`."
                )
            self.configuration.handlers.replace(_HANDLERS[name], value)
        elif name == "trackers":
            self._trackers.replace(value)
        elif name in _LISTS:
            current, new = attrgetter(_LISTS[name])(self), list(value)
            current.clear()
            current.extend(new)
        elif name in _OWNERS:
            owner, attribute = _OWNERS[name]
            is_users = name == "dataloader_config"  # which is never written to
            setattr(attrgetter(owner)(self), attribute, copy(value) if is_users else value)
        else:
            super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Accelerator:
        """Return this object: a copy of what holds it, such as a trainer, takes part in the same run."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: the copy is built with them in the run that loads it, and has prepared nothing."""
        return partial(type(self), **self._arguments), ()

    @property
    def strategy(self) -> Strategy:
        """How models are trained here."""
        return self._strategy

    @property
    def _models(self) -> list[nn.Module]:
        """The prepared models, where libraries written for Accelerate look for them; likewise the others."""
        return self._prepared.models

    @property
    def _optimizers(self) -> list[Any]:
        return self._prepared.optimizers

    @property
    def _schedulers(self) -> list[Any]:
        return self._prepared.schedulers

    @property
    def _dataloaders(self) -> Sequence[DataLoader[Any]]:
        return self._prepared.loaders

    @property
    def _custom_objects(self) -> list[Any]:
        return self._checkpointer.custom_objects

    @property
    def _save_model_state_pre_hook(self) -> Mapping[int, SaveHook]:
        return self._checkpointer.save_hooks

    @property
    def _load_model_state_pre_hook(self) -> Mapping[int, LoadHook]:
        return self._checkpointer.load_hooks

    def end_training(self) -> None:
        """Wait for the checkpoint under way, write out and close all trackers, then end the process group.

        Every rank must call it.

        Raises:
            CheckpointError: If the checkpoint failed; all is closed and the group is ended first.
            TrackerError: If a tracker failed to log something; likewise.
        """
        attempt_all(
            (
                self._checkpointer.close,
                self._preemption.close,  # until the checkpoint is there, a signal must not end the process
                self._trackers.finish,
                self.processes.destroy_process_group,
            )
        )

    # Processes

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.state.device

    @property
    def distributed_type(self) -> DistributedType:
        """The kind of run, for users' code."""
        return self.state.distributed_type

    @property
    def num_processes(self) -> int:
        """Processes in the run, over all machines."""
        return self.state.num_processes

    @property
    def process_index(self) -> int:
        """Rank of this process in the run."""
        return self.state.process_index

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its machine."""
        return self.state.local_process_index

    @property
    def use_distributed(self) -> bool:
        """Whether more than one process runs."""
        return self.state.use_distributed

    @property
    def multi_device(self) -> bool:
        """Whether every process has an accelerator of its own and there are several."""
        return self.use_distributed and self.device.type != "cpu"

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.state.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is rank 0 of its machine."""
        return self.state.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        """Whether this is the highest rank."""
        return self.state.is_last_process

    @property
    def mixed_precision(self) -> str:
        """The precision of forward and backward: `no`, `fp16`, `bf16` or `fp8`."""
        return self.state.mixed_precision

    def wait_for_everyone(self) -> None:
        """Block until every rank is here. Every rank must call it."""
        self.state.wait_for_everyone()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once per machine, as `print` does."""
        self.state.print(*args, **kwargs)

    def main_process_first(self) -> AbstractContextManager[None]:
        """Let rank 0 run the block before all others. Every rank must enter it."""
        return self.state.main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Let each machine's rank 0 run the block before the others there. Every rank must enter it."""
        return self.state.local_main_process_first()

    def split_between_processes(
        self, inputs: Any, apply_padding: bool = False
    ) -> AbstractContextManager[Any]:
        """Give each rank its part of `inputs`; the first ranks get one more where it does not divide.

        Args:
            inputs: A list, tuple, dict of these, tensor or data set.
            apply_padding: Repeat the last item so that every rank gets as many.
        """
        return self.state.split_between_processes(inputs, apply_padding=apply_padding)

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Any:
        """Make `function` run on rank 0 only; it returns None elsewhere."""
        return self.processes.on_main_process(function)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Any:
        """Make `function` run on each machine's rank 0 only; it returns None elsewhere."""
        return self.processes.on_local_main_process(function)

    def on_last_process(self, function: Callable[..., Any]) -> Any:
        """Make `function` run on the highest rank only; it returns None elsewhere."""
        return self.processes.on_last_process(function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """Make `function` run on one rank only; it returns None elsewhere."""
        return self.processes.on_process(function, process_index=process_index)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Make `function` run on one local rank of each machine only; it returns None elsewhere."""
        return self.processes.on_local_process(function, local_process_index=local_process_index)

    def set_trigger(self) -> None:
        """Raise a flag on this rank, for all ranks to see at the next `check_trigger`."""
        self._is_triggered = True

    def check_trigger(self) -> bool:
        """Return whether any rank raised the flag since the last check, and lower it everywhere.

        Every rank must call it; one small collective.
        """
        raised = torch.tensor(float(self._is_triggered), device=self.device)
        self._is_triggered = False
        return bool(accel_ops.reduce(raised, "sum") >= 1)

    def set_breakpoint(self) -> None:
        """Do what `set_trigger` does, under its older name."""
        self.set_trigger()

    def check_breakpoint(self) -> bool:
        """Do what `check_trigger` does, under its older name."""
        return self.check_trigger()

    # The engine and the mesh

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """How the processes are split over the axes of parallelism, where that was asked for."""
        return self.state.parallelism_config

    @property
    def torch_device_mesh(self) -> DeviceMesh | None:
        """The mesh over all processes, None where no `parallelism_config` was given."""
        return self.state.device_mesh

    @property
    def data_parallel_rank(self) -> int:
        """Which full copy of the model this process belongs to."""
        return self._coordinate("dp_replicate")

    @property
    def data_parallel_shard_rank(self) -> int:
        """Which shard of the parameters this process holds, among those that see different batches."""
        return self._coordinate("dp_shard")

    @property
    def tensor_parallel_rank(self) -> int:
        """Which part of each layer this process computes; 0 where layers are not shared."""
        return self._coordinate("tp")

    @property
    def context_parallel_rank(self) -> int:
        """Which part of each sequence this process reads; 0 where sequences are not shared."""
        return self._coordinate("cp")

    @property
    def pipeline_parallel_rank(self) -> int:
        """Which stage of the model this process runs; 0 where there is one stage."""
        return self._coordinate("pp")

    def _coordinate(self, axis: str) -> int:
        return current_runtime().layout.coordinate(self.state.process_index)[axis]

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by FSDP of the second version."""
        return self.state.is_fsdp2

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """Whether the engine composes with other axes of parallelism on one mesh."""
        return self.is_fsdp2

    @property
    def deepspeed_plugin(self) -> Any:
        """The DeepSpeed plugin that is selected, None without DeepSpeed."""
        return self.state.deepspeed_plugin

    @property
    def fp8_backend(self) -> FP8BackendType:
        """Which library does the 8-bit arithmetic; `NO` in the precisions that have none."""
        return self._precision.fp8_backend

    def maybe_context_parallel(
        self,
        buffers: Sequence[Tensor] | None = None,
        buffer_seq_dims: Sequence[int] | None = None,
        no_restore_buffers: Set[Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """Share the sequences in `buffers` between ranks in the block, where the run has an axis `cp`.

        There `buffers` are, in place, this rank's part of them, and prepared models compute attention with the other
        ranks. Without that axis, or without buffers, the block is as if it were not there.

        Args:
            buffers: Tensors that hold whole sequences, all of one length: tokens, labels moved one token ahead,
                positions, the padding mask.
            buffer_seq_dims: Dimension of the sequence in each.
            no_restore_buffers: Those that need not be whole again after the block.

        Raises:
            ConfigError: If the sequences cannot be cut, or there is not one dimension for each buffer.
            StateError: If sequences are cut already.
        """
        return self._strategy.share_buffers(
            buffers or (), buffer_seq_dims or (), no_restore=no_restore_buffers or frozenset()
        )

    def deepspeed_ulysses_dl_adapter(self, dl: Any, model: nn.Module) -> Any:
        """Make a loader give each rank its part of the sequences, where ranks share them; else return it.

        Args:
            dl: A prepared loader.
            model: The prepared model.
        """
        return self._strategy.share_sequences(dl)

    # Settings

    @property
    def dataloader_config(self) -> DataLoaderConfiguration:
        """How loaders are split over the processes."""
        return self.configuration.loader

    @property
    def step_scheduler_with_optimizer(self) -> bool:
        """Whether schedulers are stepped as often as optimizers."""
        return self.configuration.scheduling.step_with_optimizer

    @property
    def rng_types(self) -> list[RNGType]:
        """Generators that every rank sets alike at the start of an epoch."""
        return [RNGType(kind) for kind in self.configuration.rng_types]

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """What scales losses in fp16; None in other precisions."""
        return self._precision.scaler

    @property
    def native_amp(self) -> bool:
        """Whether the forward of prepared models is cast by `torch.autocast`."""
        return self._precision.dtype is not None

    @native_amp.setter
    def native_amp(self, value: bool) -> None:
        engine.check_native_amp(self._precision, value)

    @property
    def autocast_handler(self) -> AutocastKwargs | None:
        """How operations are cast, where that was given."""
        return self.configuration.handlers.of(AutocastKwargs)

    @property
    def scaler_handler(self) -> GradScalerKwargs | None:
        """How losses are scaled in fp16, where that was given."""
        return self.configuration.handlers.of(GradScalerKwargs)

    @property
    def init_handler(self) -> InitProcessGroupKwargs | None:
        """How the process group is set up, where that was given."""
        return self.configuration.handlers.of(InitProcessGroupKwargs)

    @property
    def profile_handler(self) -> ProfileKwargs | None:
        """What `profile` records, where that was given."""
        return self.configuration.handlers.of(ProfileKwargs)

    @property
    def ddp_handler(self) -> DistributedDataParallelKwargs | None:
        """How models are wrapped for data parallelism, where that was given; for those prepared from now on."""
        return self.configuration.handlers.of(DistributedDataParallelKwargs)

    @property
    def ao_recipe_handler(self) -> AORecipeKwargs | None:
        """How torchao computes in 8 bits, where that was given."""
        return self.configuration.handlers.of(AORecipeKwargs)

    @property
    def te_recipe_handler(self) -> TERecipeKwargs | None:
        """How Transformer Engine computes in 8 bits, where that was given."""
        return self.configuration.handlers.of(TERecipeKwargs)

    @property
    def fp8_recipe_handler(self) -> FP8RecipeKwargs | None:
        """How 8-bit training was set up by the deprecated class, where that was given."""
        return self.configuration.handlers.of(FP8RecipeKwargs)

    @property
    def fp8_enabled(self) -> bool:
        """Whether models are trained in 8 bits."""
        return self.mixed_precision == PrecisionType.FP8

    # Preparing

    @property
    def device_placement(self) -> bool:
        """Whether prepared objects are moved to this process's device."""
        return self.configuration.device_placement

    @overload
    def prepare(self, a: A, /, *, device_placement: Sequence[bool] | None = None) -> A: ...

    @overload
    def prepare(self, a: A, b: B, /, *, device_placement: Sequence[bool] | None = None) -> tuple[A, B]: ...

    @overload
    def prepare(
        self, a: A, b: B, c: C, /, *, device_placement: Sequence[bool] | None = None
    ) -> tuple[A, B, C]: ...

    @overload
    def prepare(
        self, a: A, b: B, c: C, d: D, /, *, device_placement: Sequence[bool] | None = None
    ) -> tuple[A, B, C, D]: ...

    @overload
    def prepare(
        self, a: A, b: B, c: C, d: D, e: E, /, *, device_placement: Sequence[bool] | None = None
    ) -> tuple[A, B, C, D, E]: ...

    @overload
    def prepare(self, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any: ...

    def prepare(self, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any:
        """Make objects ready for this run, whatever it is. Every rank must call it with the same objects.

        A model, optimizer or scheduler that was prepared before gives what it gave then.

        Args:
            *objects: Models, optimizers, schedulers and loaders, in any order; others come back as they are.
            device_placement: One bool per object: whether to move it to the device.

        Returns:
            The prepared objects in the order given; one object alone, not in a tuple.

        Raises:
            ConfigError: If `device_placement` has another length than `objects`, an optimizer steps
                parameters of no prepared model on several processes, or a device map has spread a model.
        """
        return self._preparer.prepare(objects, device_placement)

    def verify_device_map(self, model: nn.Module) -> bool:
        """Return whether a device map has spread `model` over several devices."""
        return has_device_map(model)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Prepare one model; see `prepare`.

        Args:
            model: The model.
            device_placement: Whether to move it to the device; the Accelerator's own choice where left out.
            evaluation_mode: It will not be trained: no gradients are synchronised.
        """
        return self._preparer.prepare_model(model, device_placement, evaluation_mode=evaluation_mode)

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> Optimizer:
        """Prepare one optimizer, whose model was prepared before; see `prepare`."""
        return self._preparer.prepare_optimizer(optimizer, device_placement)

    def prepare_scheduler(self, scheduler: LRScheduler) -> Any:
        """Prepare one scheduler, whose optimizer was prepared before; see `prepare`."""
        return self._preparer.prepare_scheduler(scheduler)

    def prepare_data_loader(
        self,
        data_loader: DataLoader[Any],
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Callable[..., Any] | None = None,
    ) -> DataLoader[Any]:
        """Prepare one loader; see `prepare`.

        Args:
            data_loader: The loader; its batch size is that of one process, unless `split_batches`.
            device_placement: Whether to move batches to the device.
            slice_fn_for_dispatch: Cuts each rank's part out of a batch that rank 0 read.
        """
        return self._preparer.prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)

    def join_uneven_inputs(
        self, joinables: Sequence[nn.Module], even_batches: bool | None = None
    ) -> AbstractContextManager[None]:
        """Let ranks run out of data at different times: those that are done answer the others' collectives.

        Args:
            joinables: The prepared models that are trained in the block.
            even_batches: What prepared loaders do in the block, instead of their own choice. Those that rank 0
                reads for all keep theirs, with a warning.
        """
        return self._preparer.join_uneven_inputs(joinables, even_batches)

    def free_memory(self, *objects: Any) -> Any:
        """Forget everything that was prepared, and where the accumulation stood, and empty the device's cache.

        Args:
            *objects: The caller's own references, which come back as None, to be assigned:
                `model, optimizer = accelerator.free_memory(model, optimizer)`.
        """
        self._checkpointer.release_memory()
        return self._preparer.free_memory(objects)

    def clear(self, *objects: Any) -> Any:
        """Do what `free_memory` does."""
        return self.free_memory(*objects)

    # Training steps

    @property
    def step(self) -> int:
        """Micro-batches since the last end of a loader."""
        return self._stepper.step

    @step.setter
    def step(self, value: int) -> None:
        self._stepper.set_step(value)

    @property
    def sync_gradients(self) -> bool:
        """Whether this micro-batch ends an accumulation: gradients are synchronised, the optimizer steps."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches whose gradients are summed before the optimizer steps."""
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self.gradient_state.plugin_kwargs.update({"num_steps": value})

    @property
    def can_defer_sync(self) -> bool:
        """Whether micro-batches that do not end an accumulation leave out the communication."""
        return self._stepper.can_defer_sync

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether any optimizer left out its last step, because gradients had overflown in fp16."""
        return any(optimizer.step_was_skipped for optimizer in self._prepared.optimizers)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Wrap one forward and backward; the optimizer steps in every `gradient_accumulation_steps`-th block.

        The last batch of a loader ends an accumulation, unless the plugin's `sync_with_dataloader` is off.

        Args:
            *models: The prepared models that are trained in the block.
        """
        return self._stepper.accumulate(*models)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Leave this rank's gradients alone in the block; a later backward outside of it synchronises all."""
        return self._strategy.gradient_sync(model, sync=Sync.LATER)

    @staticmethod
    def trigger_sync_in_backward(model: nn.Module) -> AbstractContextManager[None]:
        """Synchronise `model`'s gradients in the block's backward though its forward ran under `no_sync`."""
        return accel_backends.trigger_sync_in_backward(model)

    def backward(self, loss: Tensor, *, num_items: float | Tensor | None = None, **kwargs: Any) -> None:
        """Compute gradients of `loss`, divided by the number of accumulation steps and scaled for fp16.

        Args:
            loss: A 0-dim tensor, the mean over this rank's micro-batch.
            num_items: How many items (samples, tokens, pixels) the loss is a mean over. With it, gradients
                are those of one batch of all items of all micro-batches and ranks, however unequal their
                sizes. Without it, every micro-batch counts the same, so that items of a short one count for
                more. Give it in all micro-batches or in none; then every rank must call `backward` as often,
                once in each `accumulate` block.
            **kwargs: Passed to `Tensor.backward` or the engine's own; `learning_rate` to the `fused_backward` of
                optimizers such as LOMO, whose `step` then does nothing.

        Raises:
            ConfigError: If there is no loss, or `num_items` is negative or not finite.
            StateError: If only some micro-batches of an accumulation have `num_items`, or one has it twice.
        """
        self._stepper.backward(loss, num_items, **kwargs)

    def forward_backward(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        num_items: Callable[[Any], float | Tensor] | None = None,
    ) -> Tensor:
        """Compute the gradients of the loss of a batch, in place of a call of the model and `backward`.

        Pipeline parallelism trains in this way only: the batch passes in micro-batches through the stages, which are on
        different processes. With everything else it is the same as `backward(loss_fn(model, batch))`.

        Args:
            model: The prepared model.
            batch: Tensors with a row for each sample, nested at will; the same on all stages of a pipeline.
            loss_fn: Called as `loss_fn(model, batch)`, also with parts of the batch; calls the model and returns the
                mean loss of the rows.
            num_items: Called as `num_items(batch)`, also with parts of the batch; returns how many items the loss is a
                mean over, such as tokens, where rows have different numbers. It is what `backward` is given.

        Returns:
            The loss, detached; the same on all stages. Under `torch.no_grad` nothing else is computed.
        """
        return self._stepper.forward_backward(model, batch, loss_fn, num_items)

    def lomo_backward(self, loss: Tensor, learning_rate: float) -> None:
        """Compute gradients and update each parameter as soon as its gradient is there, which is then freed.

        For optimizers with a `fused_backward`, such as those of the package `lomo_optim`. They update before
        gradients could be averaged, so with one process only.

        Raises:
            ConfigError: With several processes, or if no prepared optimizer can do that.
        """
        self._stepper.fused_backward(loss, learning_rate)

    def unscale_gradients(
        self, optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None
    ) -> None:
        """Divide the fp16 scale out of the gradients, once per step; nothing to do in other precisions.

        Args:
            optimizer: The prepared optimizers whose gradients are meant; all where not given.
        """
        self._stepper.unscale_gradients(optimizer)

    def clip_grad_norm_(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2
    ) -> Tensor | None:
        """Scale gradients down so that their norm over all `parameters` is at most `max_norm`.

        In a micro-batch that only accumulates they stay as they are, as the optimizer does: a limit on parts
        of a sum would not be one on the sum.

        Returns:
            The norm before clipping, a 0-dim tensor; None where an engine keeps it to itself.
        """
        return self._stepper.clip_grad_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
        """Clamp every gradient into ``[-clip_value, clip_value]``, once they are complete."""
        self._stepper.clip_grad_value(parameters, clip_value)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Run the block in the run's precision, as the prepared models' forward does by itself."""
        return self._precision.autocast(autocast_handler)

    def throughput(self, *, count_flops: bool = True) -> Throughput:
        """Return what measures the steps of a training loop, for `log`.

            throughput = accelerator.throughput()
            for batch in loader:
                with throughput.step(num_items=batch["input_ids"].numel()):
                    ...
                accelerator.log(throughput.figures())

        Args:
            count_flops: Count the operations of the first step, which is slower for that and is not timed.
        """
        return Throughput(
            self.device,
            num_ranks=current_runtime().layout.num_data_ranks,
            peak_flops=peak_flops(device_name(self.device)),
            counts_flops=count_flops,
        )

    def profile(
        self, profile_handler: ProfileKwargs | None = None
    ) -> AbstractContextManager[torch.profiler.profile]:
        """Profile the block; with `output_trace_dir`, every rank leaves a Chrome trace there.

        With `schedule_option`, call `step()` of what the block gives after every step; each cycle of the
        schedule leaves a trace.

        Args:
            profile_handler: What to record; where left out, the handler given to the Accelerator.
        """
        return traced(profile_handler or self.profile_handler or ProfileKwargs(), rank=self.process_index)

    # Loaders and collectives

    @property
    def split_batches(self) -> bool:
        """Whether a loader's batch size is that of all ranks together."""
        return self.configuration.loader.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether rank 0 alone reads and hands out batches; None: for iterable data sets only."""
        return self.configuration.loader.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether the last batches are filled up so that every rank has as many."""
        return self.configuration.loader.even_batches

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether shuffling is by a sampler whose order is a function of seed and epoch alone."""
        return self.configuration.loader.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device without waiting for the copy."""
        return self.configuration.loader.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether loaders are torchdata's, which know their own position."""
        return self.configuration.loader.use_stateful_dataloader

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all ranks, joined along dimension 0, on every rank.

        Args:
            tensor: A tensor ``(n, *)`` or nested data of such; a 0-dim tensor counts as ``(1,)``. Shapes and
                structure must be the same on every rank.
        """
        return accel_ops.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather, and drop what the last batch repeated to be even: exactly the samples of the data set.

        Args:
            input_data: Tensors ``(batch, *)`` or nested data of such; any objects with `use_gather_object`.
            use_gather_object: Gather pickled objects rather than tensors.
        """
        return accel_data.gather_for_metrics(input_data, use_gather_object=use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the sum, mean, maximum or minimum over all ranks, times `scale`, on every rank.

        Args:
            tensor: A tensor, or nested data of tensors, of the same shapes on every rank.
            reduction: `sum`, `mean`, `max`, `min` or `none`.
            scale: Factor put on the result.
        """
        return accel_ops.reduce(tensor, reduction=reduction, scale=scale)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """Pad along `dim` to the largest size on any rank, so that the result can be gathered."""
        return accel_ops.pad_across_processes(tensor, dim=dim, pad_index=pad_index, pad_first=pad_first)

    def skip_first_batches(self, dataloader: DataLoader[Any], num_batches: int = 0) -> Any:
        """Return a loader that starts `num_batches` later, as for going on in the middle of an epoch."""
        return accel_data.skip_first_batches(dataloader, num_batches=num_batches)

    # Preemption

    @property
    def should_stop(self) -> bool:
        """Whether the run has been asked to stop, as all ranks have agreed.

        It changes in `backward` only, in one that synchronises gradients, and in the same one on every rank.
        So it may be read anywhere, by any rank, as often as one likes. False without `handle_preemption`.
        """
        return self._preemption.should_stop

    def handle_preemption(
        self,
        signals: Sequence[int | signal.Signals] | None = None,
        grace_period_s: float | None = None,
        exit_code: int = 75,
    ) -> Preemption:
        """Turn signals on any rank into `should_stop` on all, for the loop to save and leave.

        Call it on every rank, in the main thread. As a context manager it leaves the process when the block
        is over, if all have agreed to stop: trackers are closed, and the exit code says that the job is to be
        queued again. Otherwise it puts the earlier handlers back.

            with accelerator.handle_preemption():
                for batch in loader:
                    ...
                    if accelerator.should_stop:
                        accelerator.save_state("preempted")
                        break

        A signal is noticed within a second; the ranks then agree on a step that none has passed yet. Steps
        without a signal cost well under a microsecond. Loops without `backward` call `advance()` of the
        result once in each turn instead. Signals that reach the forked workers of prepared loaders too, as those
        of schedulers do, leave them be: call this before the loop that starts them.

        Args:
            signals: Which signals; SIGTERM and SIGUSR1 where left out.
            grace_period_s: Time from the signal until a rank that has not left is ended by force; None:
                never.
            exit_code: With which the process leaves; 75 is `EX_TEMPFAIL`, "try again".

        Raises:
            ConfigError: If an argument makes no sense.
            StateError: If signals are being handled already, or outside of the main thread.
        """
        return self._preemption.handle(signals, grace_period_s=grace_period_s, exit_code=exit_code)

    # Models

    @property
    def should_save_model(self) -> bool:
        """Whether this rank writes model files: rank 0, or each machine's with `save_on_each_node`."""
        return self._checkpointer.is_model_writer

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """Return the model that was prepared, out of what the run put around it.

        Args:
            model: A prepared model.
            keep_fp32_wrapper: Leave the mixed-precision forward on it.
            keep_torch_compile: Leave it compiled.
        """
        return self._strategy.unwrap(
            model, keep_fp32_wrapper=keep_fp32_wrapper, keep_torch_compile=keep_torch_compile
        )

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> Mapping[str, Tensor]:
        """Return the whole state of a prepared model under its own names.

        Where parameters are sharded, every rank must call it; it is on the CPU of rank 0 then, and an empty dict on the
        other ranks.

        Args:
            model: A prepared model.
            unwrap: Leave out the names that wrappers add.
        """
        return self._strategy.model_state(model) if unwrap else model.state_dict()

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights of a prepared model for plain PyTorch to read.

        If the model is sharded, every rank must call it, and returns when the files are there. Otherwise rank 0 waits
        for no other, and may call it alone.

        Args:
            model: A prepared model.
            save_directory: Folder, made where it is missing.
            max_shard_size: Largest size of one file, in bytes or such as `"5GB"`.
            safe_serialization: Write `model.safetensors`; else `pytorch_model.bin`.

        Raises:
            CheckpointError: If a tensor has no data (it is on the meta device), naming it; on every rank if the model
                is sharded and a rank does not come within 45 seconds.
        """
        self._checkpointer.save_model(
            model, save_directory, max_shard_size=max_shard_size, safe_serialization=safe_serialization
        )

    # Checkpoints

    @property
    def project_configuration(self) -> ProjectConfiguration:
        """Folders of the project, and how its checkpoints are named and kept."""
        return self._checkpointer.project

    @property
    def save_iteration(self) -> int:
        """Number of the next checkpoint that is named by number."""
        return self._checkpointer.project.iteration

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and load the states of `objects` with the rest, in the order in which they are registered.

        Args:
            *objects: Anything with `state_dict` and `load_state_dict`, whose state is tensors, numbers,
                strings and containers of these.

        Raises:
            ConfigError: Naming those that have not both methods.
            CheckpointError: If a state could not be loaded again safely; names the value and its class.
        """
        self._checkpointer.register(*objects)

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """Call `hook(models, weights, output_dir)` on every rank before a checkpoint is written.

        Models are those that were prepared, without wrappers such as DDP's.
        Weights that it takes out of the list `weights` are its own to save, into `output_dir`: the folder in
        which the checkpoint grows, which gets its final name when all is there.

        Returns:
            A handle whose `remove()` ends this.
        """
        return self._checkpointer.add_save_hook(hook)

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """Call `hook(models, input_dir)` on every rank before a checkpoint is loaded.

        Models, without wrappers such as DDP's, that it takes out of the list `models` are its own to load.

        Returns:
            A handle whose `remove()` ends this.
        """
        return self._checkpointer.add_load_hook(hook)

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

        Every rank must call it. If rank 0 alone does, it waits five seconds for the others and then saves without their
        random states, with one warning; if the model is sharded, that is an error. The checkpoint is written beside
        its place and appears there complete, in one step; a checkpoint of the same name, and older ones beyond
        `total_limit`, go only after that. If the save fails, what was there before is as it was.

        Args:
            output_dir: Its folder. Not to be given if the project names checkpoints by itself: then it is
                `checkpoints/checkpoint_<iteration>` in the project's folder.
            safe_serialization: Weights as safetensors; else by `torch.save`.
            blocking: Return when it is there. Otherwise return when its content has been copied, and write
                while the training goes on, with what it leaves of the processors.
            **save_model_func_kwargs: `max_shard_size`, such as `"5GB"`: split larger weights into several files.
                `checkpoint_format`: the format of models and optimizers, where it is not to be the strategy's own;
                `"full"` is read by every strategy and by plain PyTorch. In DeepSpeed's format also
                `exclude_frozen_parameters`, `client_state` and `save_latest`, which DeepSpeed gets.

        Returns:
            The folder; or without `blocking` a handle with `done()`, `wait()` and `exception()`.

        Raises:
            CheckpointError: On every rank, if it failed on any, with that rank's reason; without `blocking` the
                handle raises it, or `end_training` does. On every rank, too, if the model is sharded and a rank does
                not come within 45 seconds.
            ConfigError: If there is no folder to save to, or it is taken.
        """
        return self._checkpointer.save(
            output_dir,
            safe_serialization=safe_serialization,
            blocking=blocking,
            options=save_model_func_kwargs,
        )

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: Mapping[str, Any] | None = None,
        *,
        verify: bool = False,
        strict: bool = True,
        restore_loaders: bool | None = None,
        missing_ok: bool = False,
        only: Collection[str] | None = None,
        skip: Collection[str] = (),
        key_map: Mapping[str, str] | None = None,
        **load_model_func_kwargs: Any,
    ) -> bool:
        """Load a checkpoint into what was prepared and registered, the same objects in the same order.

        Every rank must call it. Nothing in the files can run. Checkpoints written by Accelerate are loaded too.

        Args:
            input_dir: Its folder; the newest complete one of the project where left out.
            load_kwargs: `map_location` and `weights_only`, for those who pass them: all is read to the CPU
                first, and never unpickled freely.
            verify: Read everything and compare digests first.
            strict: What is missing or does not fit is an error, except that loaders may be more or fewer than were
                saved. Otherwise it is a warning each, and the rest is loaded. Files left over are always one warning.
            restore_loaders: Let loaders that were in the middle of an epoch go on there. Otherwise that epoch begins
                anew, in the same order, for scripts that skip what they have read. Where left out: with
                `use_stateful_dataloader`, and after `handle_preemption`.
            missing_ok: Load nothing if the project has no complete checkpoint yet, for scripts that are started again
                until they are done; only without `input_dir`.
            only: Load these kinds alone, one or several of `models`, `optimizers`, `schedulers`, `loaders`, `scaler`,
                `custom` and `random_states` (with the accumulation and the number of steps).
            skip: Load all kinds but these, such as `["loaders", "random_states"]`.
            key_map: For weights that have other names in the models: the beginning of a name there, by the one in the
                checkpoint, such as `{"backbone.": "encoder."}`. The empty one fits every name.
            **load_model_func_kwargs: As DeepSpeed names them, for every strategy: `load_module_strict=False` (weights
                that are missing or left over are a warning), `load_optimizer_states=False`,
                `load_lr_scheduler_states=False`, and `load_module_only=True` (neither of them).

        Returns:
            Whether a checkpoint was loaded, the same on every rank: False only with `missing_ok`.

        Raises:
            CheckpointError: On every rank, if any cannot load it, naming the file and the object.
        """
        return self._checkpointer.load(
            input_dir,
            load_kwargs=load_kwargs,
            verify=verify,
            strict=strict,
            restore_loaders=restore_loaders,
            missing_ok=missing_ok,
            only=only,
            skip=skip,
            key_map=key_map,
            options=load_model_func_kwargs,
        )

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Write `obj` to a file, on the main process only (on each machine's with `save_on_each_node`).

        Args:
            obj: What to write; tensors by name with `safe_serialization`.
            f: The file.
            safe_serialization: safetensors, else `torch.save`.
        """
        self._checkpointer.save_object(obj, f, safe_serialization=safe_serialization)

    # Trackers

    @property
    def project_dir(self) -> str | None:
        """Folder for everything the project writes."""
        return self.configuration.project.project_dir

    @property
    def logging_dir(self) -> str | None:
        """Folder of the local trackers."""
        return self.configuration.project.logging_dir

    @property
    def log_with(self) -> list[str | GeneralTracker]:
        """The trackers that were chosen."""
        return self._trackers.chosen

    @log_with.setter
    def log_with(self, value: Sequence[str | LoggerType | GeneralTracker]) -> None:
        self._trackers.choose(value)

    @property
    def trackers(self) -> list[GeneralTracker]:
        """The trackers that were started. `log` waits for them from then on, so that all their calls keep one order."""
        return self._trackers.taken()

    def init_trackers(
        self,
        project_name: str,
        config: Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        on_error: OnError = "warn",
    ) -> None:
        """Start a run named `project_name` in every tracker of `log_with`. Every rank must call it.

        Args:
            project_name: Name of the project (or run, where a tracker has no projects).
            config: Settings of the run, stored once.
            init_kwargs: By a tracker's name, keywords for its constructor.
            on_error: When a tracker fails to log: `warn` once and go on, so that `end_training` raises; or `raise` at
                the next `log`.

        Raises:
            ConfigError: If trackers were already started, or `on_error` is something else.
        """
        self._trackers.start(project_name, config, init_kwargs, on_error)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Return the tracker called `name`, or its own run object with `unwrap`.

        `log` waits for this tracker from then on, so that all its calls keep one order. On ranks that do not log, its
        methods do nothing; in place of its run object there is one that accepts every call.

        Raises:
            ConfigError: If no such tracker was started.
        """
        return self._trackers.take(name, unwrap=unwrap)

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Hand `values` to every tracker: at once, or through a queue of its own where the tracker would have us wait.

        Args:
            values: Numbers, strings, tensors of one element, or dicts of these, by name.
            step: Step of training they belong to.
            log_kwargs: By a tracker's name, keywords for its `log`.

        Raises:
            TrackerError: If a tracker failed and `init_trackers` was told to raise.
        """
        self._trackers.log(values, step, log_kwargs)


if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept every name
    __getattr__, __dir__, _names = attach_stub(__name__, suffix="_names")
    __all__ = sorted(["Accelerator", *_names])  # noqa: PLE0605
