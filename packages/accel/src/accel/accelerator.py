"""The `Accelerator`: a facade over the components of a run."""

# mypy: disable-error-code="overload-overlap, type-arg"

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, TypeVarTuple, cast, overload

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

import accel_backends
import accel_checkpoint
import accel_data
import accel_ops
import accel_trackers
from accel import engine
from accel.checkpoints.checkpointer import Checkpointer, add_hook
from accel.configuration import NOT_GIVEN, RunConfiguration, resolve, resolve_rng_types
from accel.configuration import ProjectConfiguration as ProjectConfiguration
from accel.preemption import REQUEUE, SIGNALS, Preemption
from accel.prepared import Prepared
from accel.profiling import Throughput, device_name, peak_flops, traced
from accel.trackers import Trackers, attempt_all
from accel_backends import AcceleratedOptimizer, Strategy
from accel_backends import AORecipeKwargs as AORecipeKwargs
from accel_backends import AutocastKwargs as AutocastKwargs
from accel_backends import DistributedDataParallelKwargs as DistributedDataParallelKwargs
from accel_backends import FP8RecipeKwargs as FP8RecipeKwargs
from accel_backends import GradScalerKwargs as GradScalerKwargs
from accel_backends import ProfileKwargs as ProfileKwargs
from accel_backends import TERecipeKwargs as TERecipeKwargs
from accel_backends import TorchDynamoPlugin as TorchDynamoPlugin
from accel_backends.stepping.stepper import Stepper
from accel_backends.strategies.capabilities import Sync
from accel_backends.strategies.checks import has_device_map
from accel_backends.strategies.strategy import full_model_state
from accel_data import DataLoaderConfiguration as DataLoaderConfiguration
from accel_data import PreparedLoader
from accel_ops.collectives import ReductionName
from accel_state import AcceleratorState as AcceleratorState
from accel_state import GradientAccumulationPlugin as GradientAccumulationPlugin
from accel_state import GradientState as GradientState
from accel_state import ParallelismConfig as ParallelismConfig
from accel_state import PartialState as PartialState
from accel_state import current_runtime
from accel_state.delegation import AttributeProperty, delegated
from accel_state.enums import DistributedType as DistributedType
from accel_state.enums import DynamoBackend as DynamoBackend
from accel_state.enums import DynamoBackendName, FP8BackendName, PrecisionName, RNGName
from accel_state.enums import FP8BackendType as FP8BackendType
from accel_state.enums import LoggerType as LoggerType
from accel_state.enums import PrecisionType as PrecisionType
from accel_state.enums import RNGType as RNGType
from accel_state.errors import ConfigError, StateError
from accel_state.gradient_state import current_gradient
from accel_state.kwargs_handler import InitProcessGroupKwargs as InitProcessGroupKwargs
from accel_state.kwargs_handler import KwargsHandler as KwargsHandler
from accel_state.lazy import attach_stub
from accel_state.lost_rank import note_lost_rank
from accel_state.partial_state import ProcessView
from accel_state.runtime import has_runtime, reset_runtime
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:  # more names that users import from here, looked up lazily at run time
    from accel.accelerator_names import *  # noqa: F403

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
Model = TypeVar("Model", bound=nn.Module)
Schedule = TypeVar("Schedule", bound=LRScheduler)
Loader = TypeVar("Loader", bound=DataLoader[Any])
Placing: TypeAlias = Sequence[bool] | None


def _handler(kind: type[KwargsHandler], *, is_late: bool = False) -> Any:
    """Return the property of the handler of a class that was passed in `kwargs_handlers`, None without one.

    Args:
        kind: The class.
        is_late: Whether it is read after the Accelerator is built, so that an assignment has an effect.
    """

    def assign(accelerator: Accelerator, value: KwargsHandler | None) -> None:
        if not is_late:
            warn_user(
                f"An assigned `{kind.__name__}` has no effect: the Accelerator is built. Pass it in `kwargs_handlers`."
            )
        handlers = accelerator.configuration.handlers
        handlers.pop(kind, None)
        if value is not None:
            handlers[kind] = value

    return AttributeProperty(lambda accelerator: accelerator.configuration.handlers.get(kind), assign)


class Accelerator(ProcessView):
    """Run one training or inference script unchanged on one device, many devices or many machines.

        accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = loss_fn(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

    Omitted settings are taken from the launcher (``accel launch``, ``accel config``), then from the defaults below.
    The guides on training loops, accumulation, parallelism and checkpoints explain them one by one.

    Args:
        device_placement: Move prepared models, optimizer state and batches to this process's device. Default: True.
        split_batches: Deprecated: use `DataLoaderConfiguration(split_batches=...)`.
        mixed_precision: `no`, `fp16`, `bf16` or `fp8`. Default: the launcher's setting, else `no`.
        gradient_accumulation_steps: Number of micro-batches per optimizer step. Default: 1.
        cpu: Run on the CPU even if an accelerator is available. Default: False.
        dataloader_config: How loaders are sharded, dispatched and shuffled. Default: `DataLoaderConfiguration()`.
        deepspeed_plugin: Train with DeepSpeed: a `DeepSpeedPlugin`, or a dict of several; the first one is selected.
        fsdp_plugin: Shard parameters with FSDP: a `FullyShardedDataParallelPlugin`. Works on any device.
        torch_tp_plugin: Deprecated: use `ParallelismConfig(tp_size=...)`.
        megatron_lm_plugin: Train with Megatron-LM: a `MegatronLMPlugin`.
        rng_types: RNGs that are synchronized across ranks at the start of each epoch, such as `["torch"]`. Default: the
            generator of the sampler.
        log_with: Trackers by name, class or instance, or `all` for all that are installed. Default: none.
        project_dir: Folder for checkpoints and logs. Default: none.
        project_config: How checkpoints are named, numbered and kept: a `ProjectConfiguration`.
        gradient_accumulation_plugin: Accumulation options, in place of `gradient_accumulation_steps`.
        step_scheduler_with_optimizer: Step schedulers only when the optimizer steps. Default: True.
        kwargs_handlers: Settings of components, one per class: DDP, autocast, gradient scaler, process group, profiler,
            8-bit training.
        dynamo_backend: Compile prepared models with this backend of `torch.compile`. Default: the launcher's setting.
        dynamo_plugin: Compilation options, in place of `dynamo_backend`.
        deepspeed_plugins: Alias of ``deepspeed_plugin``.
        parallelism_config: Sizes of the mesh axes: data, tensor, context, expert and pipeline parallelism.
        scheduler_unit: How far one `step` of a prepared scheduler advances. `process` (default): once per process, so
            that a schedule counted in batches of one process ends on time with several; the learning rate at a given
            sample then depends on the number of processes. `optimizer_step`: once, as in plain PyTorch.
        fp8_backend: Library for 8-bit arithmetic: `AO` (torchao) or `TE` (Transformer Engine). A handler in
            ``kwargs_handlers`` selects it too.
        strategy_plugin: Train with a strategy of another package: an object whose class attribute ``strategy`` is the
            name of the strategy, which reads its settings from it.

    Raises:
        ConfigError: If arguments contradict each other or request something unavailable.
        StateError: If an earlier `Accelerator` of this process was created with different settings.
    """

    configuration: RunConfiguration
    state: AcceleratorState
    gradient_state: GradientState

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = NOT_GIVEN,
        mixed_precision: PrecisionType | PrecisionName | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: accel_backends.FullyShardedDataParallelPlugin | None = None,
        torch_tp_plugin: accel_backends.TorchTensorParallelPlugin | None = None,
        megatron_lm_plugin: Any = None,
        rng_types: Sequence[RNGType | RNGName] | None = None,
        log_with: str
        | LoggerType
        | accel_trackers.GeneralTracker
        | Sequence[str | LoggerType | accel_trackers.GeneralTracker]
        | None = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Sequence[KwargsHandler] | None = None,
        dynamo_backend: DynamoBackend | DynamoBackendName | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugins: Any = None,
        parallelism_config: ParallelismConfig | None = None,
        *,
        scheduler_unit: Literal["process", "optimizer_step"] = "process",
        fp8_backend: FP8BackendType | FP8BackendName | None = None,
        strategy_plugin: Any = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self._arguments = {name: given[name] for name in given if given[name] is not NOT_GIVEN}
        if has_runtime() and current_runtime().has_ended:
            reset_runtime()
        self.configuration = resolve(given)
        had_processes, had_state = has_runtime(), AcceleratorState.is_initialized()
        gradient = current_gradient()
        accumulation = gradient.plugin_kwargs, gradient.initialized
        try:
            self.state = engine.make_state(self.configuration, mixed_precision=mixed_precision, cpu=cpu)
            self.gradient_state = GradientState(self.configuration.accumulation)
            self._make_components()
            self._trackers = Trackers(log_with, logging_dir=self.configuration.project.logging_dir)
        except BaseException:
            gradient.plugin_kwargs, gradient.initialized = accumulation  # shared state, for a retry
            if not had_state:  # so that the next call may have other arguments
                AcceleratorState._reset_state(reset_partial_state=not had_processes)
            raise

    def _make_components(self) -> None:
        """Create the components, in the order of their dependencies."""
        configuration, state, runtime = self.configuration, self.state, current_runtime()
        self._is_triggered = False
        self._preemption: Preemption | None = None
        self._precision = accel_backends.select_precision(
            state.mixed_precision, device_backend=runtime.device_backend, handlers=configuration.handlers
        )
        self._strategy = engine.make_strategy(
            configuration,
            state.parallelism_config,
            runtime=runtime,
            precision=self._precision,
        )
        self._prepared = Prepared(
            configuration,
            strategy=self._strategy,
            gradient_state=self.gradient_state,
            make_loader=self.prepare_data_loader,
        )
        self._stepper = Stepper(
            strategy=self._strategy,
            precision=self._precision,
            gradient=self.gradient_state,
            weights=engine.make_weighted_loss(runtime, state.device_mesh),
            models=self._prepared.models,
            optimizers=self._prepared.optimizers,
            num_processes=runtime.topology.world_size,
            is_debugging=runtime.debug,
        )
        self._checkpointer = Checkpointer(
            configuration,
            processes=state,
            strategy=self._strategy,
            precision=self._precision,
            prepared=self._prepared,
            stepper=self._stepper,
            resumes_loaders=self._resumes_loaders,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Accelerator:
        """Return this object: a copied trainer, for example, belongs to the same run."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the constructor's arguments; unpickling constructs an Accelerator with nothing prepared."""
        return partial(type(self), **self._arguments), ()

    def __repr__(self) -> str:
        """Describe the run, with the effective batch size of each prepared loader: rows per step of all ranks."""
        sizes = [
            str(loader.total_batch_size * self.gradient_accumulation_steps)
            for loader in self._dataloaders
            if isinstance(loader, accel_data.PreparedLoader)
            and (loader.batch_size or getattr(loader.batch_sampler, "batch_size", 0))
        ]
        batches = f", effective batch size: {', '.join(sizes)}" if sizes else ""
        return (
            f"<{type(self).__name__}: {self.strategy.name}, processes: {self.num_processes}, device: {self.device}, "
            f"mixed precision: {self.mixed_precision}{batches}>"
        )

    strategy: Strategy = delegated("_strategy")
    """The training strategy."""

    # These private names are read and assigned by third-party libraries.
    _models: list[nn.Module] = delegated("_prepared.models", replaces_items=True)
    _optimizers: list[Any] = delegated("_prepared.optimizers", replaces_items=True)
    _schedulers: list[Any] = delegated("_prepared.schedulers", replaces_items=True)
    _custom_objects: list[Any] = delegated("_checkpointer.custom_objects", replaces_items=True)
    _save_model_state_pre_hook: Mapping[int, Callable[..., None]] = delegated("_checkpointer.save_hooks")
    _load_model_state_pre_hook: Mapping[int, Callable[..., None]] = delegated("_checkpointer.load_hooks")

    @property
    def _dataloaders(self) -> Sequence[DataLoader[Any]]:
        return list(self._prepared.loaders.values())

    @_dataloaders.setter
    def _dataloaders(self, loaders: Iterable[DataLoader[Any]]) -> None:
        self._prepared.set_loaders(loaders)

    def end_training(self) -> None:
        """Finish the running save, close all trackers, and destroy the process group. Every rank must call it.

        The next `Accelerator` of this process starts a new run, with its own settings and process group.

        Raises:
            CheckpointError: If a save in the background failed; raised after everything is closed.
            TrackerError: If a tracker failed to log something; raised after everything is closed.
        """
        # Until the checkpoint is complete, a signal must not end the process.
        preemption = [] if self._preemption is None else [self._preemption.close]
        attempt_all(
            [
                self._checkpointer.close,
                *preemption,
                self._trackers.finish,
                self.state.destroy_process_group,
            ]
        )

    # Processes

    distributed_type: DistributedType = delegated("state.distributed_type")
    """Kind of distributed run, for user code; accel never branches on it."""

    @property
    def multi_device(self) -> bool:
        """Whether there are several processes, each with an accelerator."""
        return self.use_distributed and self.device.type != "cpu"

    mixed_precision: str = delegated("state.mixed_precision")
    """Precision of forward and backward: `no`, `fp16`, `bf16` or `fp8`."""

    def set_trigger(self) -> None:
        """Set a flag on this rank, which the next `check_trigger` reports on all ranks."""
        self._is_triggered = True

    def check_trigger(self) -> bool:
        """Return whether any rank has called `set_trigger` since the last check, and reset the flag on all ranks.

        Every rank must call it. Costs one small all-reduce.

            if loss.isnan():
                accelerator.set_trigger()
            if accelerator.check_trigger():
                break  # on all ranks together
        """
        raised = torch.tensor(float(self._is_triggered), device=self.device)
        self._is_triggered = False
        return bool(accel_ops.reduce(raised, "sum") >= 1)

    # The older names.
    set_breakpoint = set_trigger
    check_breakpoint = check_trigger

    # The engine and the mesh

    parallelism_config: ParallelismConfig | None = delegated("state.parallelism_config")
    """Sizes of the mesh axes, None if none were requested."""

    torch_device_mesh: DeviceMesh | None = delegated("state.device_mesh")
    """The device mesh of all processes, None without `parallelism_config`."""

    @property
    def data_parallel_rank(self) -> int:
        """Index of the model replica that this process belongs to."""
        return self._coordinate("dp_replicate")

    @property
    def data_parallel_shard_rank(self) -> int:
        """Index of this process on the FSDP axis (`dp_shard`)."""
        return self._coordinate("dp_shard")

    @property
    def tensor_parallel_rank(self) -> int:
        """Index of this process on the tensor-parallel axis; 0 without one."""
        return self._coordinate("tp")

    @property
    def context_parallel_rank(self) -> int:
        """Index of this process on the context-parallel axis; 0 without one."""
        return self._coordinate("cp")

    @property
    def pipeline_parallel_rank(self) -> int:
        """Index of the pipeline stage that this process runs; 0 without a pipeline."""
        return self._coordinate("pp")

    def _coordinate(self, axis: str) -> int:
        return current_runtime().layout.coordinate(self.state.process_index)[axis]

    is_fsdp2: bool = delegated("state.is_fsdp2")
    """Whether models are sharded by FSDP2 (`fully_shard`)."""

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """Whether the strategy composes with other mesh axes."""
        return self.is_fsdp2

    deepspeed_plugin: Any = delegated("state.deepspeed_plugin")
    """The selected DeepSpeed plugin, None without DeepSpeed."""

    fp8_backend: FP8BackendType = delegated("_precision.fp8_backend")
    """Library for 8-bit arithmetic; `NO` in other precisions."""

    def maybe_context_parallel(
        self,
        buffers: Sequence[Tensor] | None = None,
        buffer_seq_dims: Sequence[int] | None = None,
        no_restore_buffers: Set[Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """Shard the sequences in `buffers` over the context-parallel ranks inside the block.

        The buffers are sharded in place, and prepared models compute attention together with the other ranks. Without a
        `cp` axis, or without buffers, the context manager is a no-op.

            buffers = [input_ids, shifted_labels, position_ids]
            with accelerator.maybe_context_parallel(
                buffers, buffer_seq_dims=[1, 1, 1], no_restore_buffers=set(buffers)
            ):
                loss = model(input_ids, shift_labels=shifted_labels, position_ids=position_ids).loss
                accelerator.backward(loss)

        Args:
            buffers: Tensors ``(*, sequence, *)`` on the device of this process, with full sequences of the same length:
                tokens, labels shifted by one token, positions, padding mask.
            buffer_seq_dims: Sequence dimension of each buffer.
            no_restore_buffers: Buffers that need not be restored after the block.

        Raises:
            ConfigError: If the sequences cannot be sharded, or `buffer_seq_dims` has another length than `buffers`.
            StateError: If sequences are sharded already.
        """
        sequences = self._strategy.sequences
        if sequences is None:
            return nullcontext()
        no_restore = no_restore_buffers or frozenset()
        return sequences.shard_buffers(buffers or (), buffer_seq_dims or (), no_restore=no_restore)

    def deepspeed_ulysses_dl_adapter(self, dl: Any, model: nn.Module) -> Any:
        """Return a loader that shards each sequence over the sequence-parallel ranks; without those, return `dl`.

        Args:
            dl: A prepared loader.
            model: The prepared model.
        """
        sequences = self._strategy.sequences
        return dl if sequences is None else sequences.wrap_loader(dl)

    # Settings

    dataloader_config: DataLoaderConfiguration = delegated("configuration.loader", convert=copy)
    """How loaders are sharded, dispatched and shuffled."""

    step_scheduler_with_optimizer: bool = delegated("configuration.scheduling.step_with_optimizer")
    """Whether schedulers step only when the optimizer steps."""

    rng_types: list[RNGType] = delegated("configuration.rng_types", convert=resolve_rng_types)
    """RNGs that are synchronized across ranks at the start of each epoch."""

    scaler: torch.amp.GradScaler | None = delegated("_precision.scaler")
    """The fp16 gradient scaler; None in other precisions."""

    @property
    def native_amp(self) -> bool:
        """Whether prepared models run their forward under `torch.autocast`.

        Raises:
            ConfigError: If another value is assigned.
        """
        return self._precision.dtype is not None

    @native_amp.setter
    def native_amp(self, value: bool) -> None:
        if value != self.native_amp:  # scripts assign False on MPS, which is its value there by default
            raise ConfigError(
                f"`native_amp` follows `mixed_precision`, which is {self.mixed_precision}, and cannot be {value}. "
                f"Build the Accelerator with `mixed_precision={'bf16' if value else 'no'}`."
            )

    autocast_handler: AutocastKwargs | None = _handler(AutocastKwargs, is_late=True)
    """The autocast settings that were given, if any."""

    scaler_handler: GradScalerKwargs | None = _handler(GradScalerKwargs)
    """The gradient scaler settings that were given, if any."""

    init_handler: InitProcessGroupKwargs | None = _handler(InitProcessGroupKwargs)
    """The process group settings that were given, if any."""

    profile_handler: ProfileKwargs | None = _handler(ProfileKwargs, is_late=True)
    """The profiler settings that were given, if any."""

    ddp_handler: DistributedDataParallelKwargs | None = _handler(DistributedDataParallelKwargs, is_late=True)
    """The DDP settings that were given, if any; they apply to models that are prepared later."""

    ao_recipe_handler: AORecipeKwargs | None = _handler(AORecipeKwargs)
    """The torchao settings that were given, if any."""

    te_recipe_handler: TERecipeKwargs | None = _handler(TERecipeKwargs)
    """The Transformer Engine settings that were given, if any."""

    fp8_recipe_handler: FP8RecipeKwargs | None = _handler(FP8RecipeKwargs)
    """The deprecated 8-bit settings that were given, if any."""

    @property
    def fp8_enabled(self) -> bool:
        """Whether `mixed_precision` is `fp8`."""
        return self.mixed_precision == PrecisionType.FP8

    # Preparing

    device_placement: bool = delegated("configuration.device_placement")
    """Whether prepared objects are moved to this process's device."""

    # By usual order, as no type expresses "each becomes a prepared one". jedi takes no `DataLoader[Any]`, nor `*Ts`.
    @overload
    def prepare(self, a: DataLoader, /, *, device_placement: Placing = ...) -> PreparedLoader: ...
    @overload
    def prepare(self, a: Optimizer, /, *, device_placement: Placing = ...) -> AcceleratedOptimizer: ...
    @overload
    def prepare(self, a: T1, /, *, device_placement: Placing = ...) -> T1: ...
    @overload
    def prepare(
        self, a: DataLoader, b: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[PreparedLoader, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: Optimizer, /, *, device_placement: Placing = ...
    ) -> tuple[T1, AcceleratedOptimizer]: ...
    @overload
    def prepare(self, a: T1, b: T2, /, *, device_placement: Placing = ...) -> tuple[T1, T2]: ...
    @overload
    def prepare(
        self, a: T1, b: DataLoader, c: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, PreparedLoader, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: Optimizer, c: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, AcceleratedOptimizer, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: Optimizer, c: T2, /, *, device_placement: Placing = ...
    ) -> tuple[T1, AcceleratedOptimizer, T2]: ...
    @overload
    def prepare(
        self, a: T1, b: T2, c: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, T2, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: DataLoader, c: T2, /, *, device_placement: Placing = ...
    ) -> tuple[T1, PreparedLoader, T2]: ...
    @overload
    def prepare(self, a: T1, b: T2, c: T3, /, *, device_placement: Placing = ...) -> tuple[T1, T2, T3]: ...
    @overload
    def prepare(
        self, a: T1, b: Optimizer, c: DataLoader, d: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, AcceleratedOptimizer, PreparedLoader, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: Optimizer, c: DataLoader, d: T2, /, *, device_placement: Placing = ...
    ) -> tuple[T1, AcceleratedOptimizer, PreparedLoader, T2]: ...
    @overload
    def prepare(
        self, a: T1, b: Optimizer, c: T2, d: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, AcceleratedOptimizer, T2, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: T2, c: Optimizer, d: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, T2, AcceleratedOptimizer, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: Optimizer, c: DataLoader, d: DataLoader, e: T2, /, *, device_placement: Placing = ...
    ) -> tuple[T1, AcceleratedOptimizer, PreparedLoader, PreparedLoader, T2]: ...
    @overload
    def prepare(
        self, a: T1, b: Optimizer, c: T2, d: DataLoader, e: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, AcceleratedOptimizer, T2, PreparedLoader, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: T2, c: Optimizer, d: DataLoader, e: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, T2, AcceleratedOptimizer, PreparedLoader, PreparedLoader]: ...
    @overload
    def prepare(
        self, a: T1, b: T2, c: Optimizer, d: Optimizer, e: DataLoader, /, *, device_placement: Placing = ...
    ) -> tuple[T1, T2, AcceleratedOptimizer, AcceleratedOptimizer, PreparedLoader]: ...
    @overload
    def prepare(self, *objects: *Ts, device_placement: Placing = ...) -> tuple[*Ts]: ...
    @overload
    def prepare(self, *objects: Any, device_placement: Placing = ...) -> Any: ...
    def prepare(self, *objects: object, device_placement: Placing = None) -> Any:
        """Prepare models, optimizers, schedulers and loaders for this run. Every rank must pass the same objects.

            model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

        Models are moved to the device, wrapped and compiled as configured; loaders are sharded over the ranks.
        Preparing an object again returns the same prepared object.

        Args:
            *objects: In any order; objects of other classes are returned unchanged.
            device_placement: For each object, whether to move it to the device.

        Returns:
            The prepared objects in the same order; a single object is returned without a tuple.

        Raises:
            ConfigError: If `device_placement` has another length than `objects`, if an optimizer updates parameters of
                no prepared model on several processes, or if a device map has placed a model on several devices.
        """
        return self._prepared.prepare(objects, device_placement)

    def verify_device_map(self, model: nn.Module) -> bool:
        """Whether a device map has placed `model` on several devices."""
        return has_device_map(model)

    def prepare_model(
        self, model: Model, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Model:
        """Prepare one model; see `prepare`.

        Args:
            model: The model.
            device_placement: Whether to move it to the device. Default: the Accelerator's setting.
            evaluation_mode: For models that are not trained: no wrapper that synchronizes gradients.
        """
        prepared = self._prepared.prepare_model(model, device_placement, evaluation_mode=evaluation_mode)
        return cast(Model, prepared)

    def prepare_optimizer(
        self, optimizer: Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Prepare one optimizer; its model must have been prepared. See `prepare`."""
        return cast(AcceleratedOptimizer, self._prepared.prepare_optimizer(optimizer, device_placement))

    def prepare_scheduler(self, scheduler: Schedule) -> Schedule:
        """Prepare one scheduler; its optimizer must have been prepared. See `prepare`."""
        return cast(Schedule, self._prepared.prepare_scheduler(scheduler))

    def prepare_data_loader(
        self,
        data_loader: DataLoader[Any],
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Callable[..., Any] | None = None,
    ) -> PreparedLoader:
        """Prepare one loader; see `prepare`.

        Args:
            data_loader: The loader. Its batch size is per process, unless `split_batches` is set.
            device_placement: Whether to move batches to the device. Default: the Accelerator's setting.
            slice_fn_for_dispatch: With `dispatch_batches`, returns a rank's slice of a batch.
        """
        ready = self._prepared.prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)
        if self._preemption is not None:
            self._preemption.keep_workers(ready)
        return ready

    @contextmanager
    def join_uneven_inputs(
        self, joinables: Sequence[nn.Module], even_batches: bool | None = None
    ) -> Iterator[None]:
        """Train on a different number of batches per rank: finished ranks join the collectives of unfinished ones.

            with accelerator.join_uneven_inputs([model], even_batches=False):
                for inputs, targets in loader:
                    ...

        Every rank must enter the block, and waits at its end for all others. See `torch.distributed.algorithms.Join`.

        Args:
            joinables: The prepared models that are trained in the block.
            even_batches: Overrides this setting of prepared loaders inside the block. Dispatched loaders keep theirs,
                with a warning.
        """
        with self._stepper.over_uneven_inputs(), self._prepared.join_uneven_inputs(joinables, even_batches):
            yield

    def free_memory(self, *objects: Any) -> list[Any]:
        """Release everything that was prepared, reset the accumulation, and empty the device's cache.

            model, optimizer = accelerator.free_memory(model, optimizer)

        Args:
            *objects: The caller's references. A None is returned for each, to be assigned to them.
        """
        self._checkpointer.release_memory()
        self._prepared.clear()
        self._stepper.reset()
        return [*accel_ops.release_memory(*objects)]

    def clear(self, *objects: Any) -> list[Any]:
        """Alias of `free_memory`."""
        return self.free_memory(*objects)

    # Training steps

    @property
    def step(self) -> int:
        """Number of micro-batches since a loader last ended."""
        return self._stepper.step

    @step.setter
    def step(self, value: int) -> None:
        self._stepper.set_step(value)

    sync_gradients: bool = delegated("gradient_state.sync_gradients")
    """Whether this micro-batch completes an accumulation: gradients are reduced and the optimizer steps."""

    @property
    def gradient_accumulation_steps(self) -> int:
        """Number of micro-batches per optimizer step."""
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self.gradient_state.plugin_kwargs.update({"num_steps": value})

    can_defer_sync: bool = delegated("_stepper.can_defer_sync")
    """Whether micro-batches that do not complete an accumulation skip communication."""

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether any optimizer skipped its last step because fp16 gradients overflowed."""
        return any(optimizer.step_was_skipped for optimizer in self._prepared.optimizers)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Run one micro-batch of a gradient accumulation; every `gradient_accumulation_steps`-th one updates the model.

            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(loss_fn(model(inputs), targets))
                    optimizer.step()  # does nothing until the accumulation is complete
                    optimizer.zero_grad()

        The last batch of the loader that the loop goes over completes an accumulation, unless the plugin's
        `sync_with_dataloader` is False. Other loaders that are read inside the loop do not.

        Args:
            *models: The prepared models that are trained in the block.
        """
        return self._stepper.accumulate(*models)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Skip gradient synchronization in the block; the next backward outside reduces the accumulated gradients."""
        return self._strategy.gradient_sync(model, sync=Sync.LATER)

    @staticmethod
    def trigger_sync_in_backward(model: nn.Module) -> AbstractContextManager[None]:
        """Reduce `model`'s gradients in the backward inside the block even if its forward ran under `no_sync`."""
        return accel_backends.trigger_sync_in_backward(model)

    def backward(self, loss: Tensor, *, num_items: float | Tensor | None = None, **kwargs: Any) -> None:
        """Compute the gradients of `loss`, divided by the number of accumulation steps and scaled for fp16.

            num_tokens = (labels != -100).sum()
            accelerator.backward(loss, num_items=num_tokens)

        Args:
            loss: A 0-dim tensor on any device: the mean over this rank's micro-batch.
            num_items: Number of items (samples, tokens, pixels) that the loss is a mean over. With it, gradients equal
                the gradients of one batch with all items of all micro-batches and ranks. Without it, all micro-batches
                have the same weight, so items of a short one weigh more. Pass it in all micro-batches of an
                accumulation or in none; every rank must then call `backward` once per `accumulate` block.
            **kwargs: Passed to `Tensor.backward` or to the engine; `learning_rate` is passed to the `fused_backward` of
                optimizers such as LOMO, whose `step` then does nothing.

        Raises:
            ConfigError: If `loss` is None, or `num_items` is negative or not finite. A number on an accelerator is not
                checked: zero items in a window, for instance, give NaN as in plain torch.
            StateError: If only some micro-batches of an accumulation pass `num_items`, or one passes it twice.
        """
        try:
            self._stepper.backward(loss, num_items, **kwargs)
        except RuntimeError as error:
            note_lost_rank(error, "backward")
            raise

    def forward_backward(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        num_items: Callable[[Any], float | Tensor] | None = None,
    ) -> Tensor:
        """Run forward and backward of a batch together. Pipeline parallelism trains with this method only.

            loss = accelerator.forward_backward(model, batch, lambda model, part: model(**part).loss)

        A pipeline splits the batch into micro-batches that pass through the stages on different processes. With every
        other strategy it equals `backward(loss_fn(model, batch))`.

        Args:
            model: The prepared model.
            batch: Nested tensors ``(batch, *)``; the same on all stages of a pipeline.
            loss_fn: Called as `loss_fn(model, part)` with parts of the batch; calls the model and returns the mean
                loss.
            num_items: Called as `num_items(part)`; returns the number of items, such as tokens, that the loss is a mean
                over, if rows have different numbers. See `backward`.

        Returns:
            The detached loss, 0-dim on the device of this process, the same on all stages. Under `torch.no_grad` no
            gradients are computed.
        """
        return self._stepper.forward_backward(model, batch, loss_fn, num_items)

    def evaluate(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: Callable[[nn.Module, Any], tuple[Tensor, Any]],
        num_items: Callable[[Any], float | Tensor] | None = None,
    ) -> tuple[Tensor, Any]:
        """Return the loss and the outputs of a batch without gradients, also under pipeline parallelism.

            def loss_and_logits(model, part):
                output = model(**part)
                return output.loss, output.logits

            loss, logits = accelerator.evaluate(model, batch, loss_and_logits)

        Args:
            model: The prepared model.
            batch: As for `forward_backward`.
            loss_fn: Called as `loss_fn(model, part)`; returns the mean loss, and outputs ``(batch, *)``.
            num_items: As for `forward_backward`.

        Returns:
            The loss, 0-dim, and the outputs of the batch, on the device of this process and on every stage.
        """
        return self._strategy.evaluate(model, batch, loss_fn, num_items=num_items)

    def lomo_backward(self, loss: Tensor, learning_rate: float) -> None:
        """Update each parameter as soon as its gradient is computed, and free the gradient.

        For optimizers with a `fused_backward`, such as LOMO (https://arxiv.org/abs/2306.09782). They update before
        gradients could be averaged over ranks, so only one process is supported.

        Args:
            loss: A 0-dim tensor on this process's device.
            learning_rate: The learning rate of this step.

        Raises:
            ConfigError: With several processes, or if no prepared optimizer has a `fused_backward`.
        """
        self._stepper.fused_backward(loss, learning_rate)

    def unscale_gradients(
        self, optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None
    ) -> None:
        """Unscale the fp16 gradients, once per step; does nothing in other precisions.

        Args:
            optimizer: Prepared optimizers whose gradients to unscale. Default: all.
        """
        self._stepper.unscale_gradients(optimizer)

    def clip_grad_norm_(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2
    ) -> Tensor | None:
        """Clip the total norm of the gradients of `parameters` to `max_norm`. Every rank must call it.

            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)

        Gradients are unscaled first in fp16. In a micro-batch that does not complete an accumulation nothing is
        clipped.

        Args:
            parameters: Parameters of prepared models, of any shape, sharded or not, on this process's device.
            max_norm: Largest norm allowed.
            norm_type: Order of the norm; may be ``float("inf")``.

        Returns:
            The norm before clipping, a 0-dim tensor; None if the engine does not report it.
        """
        return self._stepper.clip_grad_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
        """Clamp all gradients to ``[-clip_value, clip_value]``, in micro-batches that complete an accumulation.

        Args:
            parameters: Parameters of prepared models, of any shape, on this process's device.
            clip_value: Largest absolute value allowed.
        """
        self._stepper.clip_grad_value(parameters, clip_value)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Run the block in `mixed_precision`, as the forward of prepared models does.

            with accelerator.autocast():
                loss = loss_fn(outputs, targets)

        Args:
            autocast_handler: Settings of this block, in place of the Accelerator's.
        """
        return self._precision.autocast(autocast_handler)

    def throughput(self, *, count_flops: bool = True) -> Throughput:
        """Return a meter for throughput and model FLOPs utilization (MFU) of a training loop.

            throughput = accelerator.throughput()
            for batch in loader:
                with throughput.step(num_items=batch["input_ids"].numel()):
                    ...
                accelerator.log(throughput.figures())

        Args:
            count_flops: Count the floating-point operations of the first step, which is slower and not timed.
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
        """Profile the block with `torch.profiler`; with `output_trace_dir`, every rank writes a Chrome trace there.

            with accelerator.profile(ProfileKwargs(activities=["cpu", "cuda"], output_trace_dir="trace")) as profiler:
                train_step()

        With `schedule_option`, call `profiler.step()` after every step; each cycle of the schedule writes a trace.

        Args:
            profile_handler: Profiler settings. Default: the handler passed to the Accelerator.
        """
        return traced(profile_handler or self.profile_handler or ProfileKwargs(), rank=self.process_index)

    # Loaders and collectives

    split_batches: bool = delegated("configuration.loader.split_batches")
    """Whether the batch size of a loader is the total over all ranks."""

    dispatch_batches: bool | None = delegated("configuration.loader.dispatch_batches")
    """Whether rank 0 reads all batches and sends them to other ranks; None: for iterable data sets only."""

    even_batches: bool = delegated("configuration.loader.even_batches")
    """Whether the last batches are padded so that all ranks get the same number."""

    use_seedable_sampler: bool = delegated("configuration.loader.use_seedable_sampler")
    """Whether the shuffle order depends on the seed and the epoch only."""

    non_blocking: bool = delegated("configuration.loader.non_blocking")
    """Whether batches are copied to the device asynchronously."""

    use_stateful_dataloader: bool = delegated("configuration.loader.use_stateful_dataloader")
    """Whether loaders are torchdata's `StatefulDataLoader`."""

    def gather(self, tensor: T) -> T:
        """Gather tensors from all ranks, concatenated along dimension 0, on every rank. Every rank must call it.

            losses = accelerator.gather(loss)  # (num_processes,)

        Args:
            tensor: A tensor ``(n, *)`` or nested data of such; a 0-dim tensor counts as ``(1,)``. Shapes and
                structure must be the same on every rank.
        """
        return accel_ops.gather(tensor)

    @overload
    def gather_for_metrics(self, input_data: T, use_gather_object: Literal[False] = False) -> T: ...
    @overload
    def gather_for_metrics(self, input_data: Any, use_gather_object: bool) -> Any: ...

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather, and drop the padding of the last batch, so that each sample appears once. Every rank must call it.

            for inputs, targets in eval_loader:
                predictions, references = accelerator.gather_for_metrics((model(inputs).argmax(-1), targets))
                metric.add_batch(predictions=predictions, references=references)

        Args:
            input_data: Tensors ``(batch, *)`` or nested data of such; any objects with `use_gather_object`.
            use_gather_object: Gather pickled objects instead of tensors.
        """
        return accel_data.gather_for_metrics(input_data, use_gather_object=use_gather_object)

    def reduce(self, tensor: T, reduction: ReductionName = "sum", scale: float = 1.0) -> T:
        """Reduce tensors over all ranks, and return the result times `scale` on every rank. Every rank must call it.

        Args:
            tensor: A tensor, or nested data of tensors, of the same shapes on every rank.
            reduction: `sum`, `mean`, `max`, `min` or `none`.
            scale: Factor put on the result.
        """
        return accel_ops.reduce(tensor, reduction=reduction, scale=scale)

    def pad_across_processes(self, tensor: T, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> T:
        """Pad tensors along `dim` to the largest size on any rank, as `gather` needs. Every rank must call it."""
        return accel_ops.pad_across_processes(tensor, dim=dim, pad_index=pad_index, pad_first=pad_first)

    def skip_first_batches(self, dataloader: Loader, num_batches: int = 0) -> Loader:
        """Return a loader without the first `num_batches`, to resume in the middle of an epoch.

            for inputs, targets in accelerator.skip_first_batches(loader, num_batches=resume_step):
                ...

        Args:
            dataloader: A prepared loader.
            num_batches: Number of this rank's batches to skip. Map-style data sets are not read for them.
        """
        return accel_data.skip_first_batches(dataloader, num_batches=num_batches)

    # Preemption

    @property
    def should_stop(self) -> bool:
        """Whether a signal has requested a stop and all ranks have agreed on it; see `handle_preemption`.

        It changes only in a `backward` that completes an accumulation, in the same one on every rank, so any rank may
        read it at any time.
        """
        return self._preemption is not None and self._preemption.should_stop

    def handle_preemption(
        self,
        signals: Sequence[int | signal.Signals] | None = None,
        grace_period_s: float | None = None,
        exit_code: int = REQUEUE,
    ) -> Preemption:
        """Set `should_stop` on all ranks when any rank receives a signal, so that the loop can save and exit.

        Call it on every rank, in the main thread. As a context manager it exits the process at the end of the block if
        the ranks have agreed to stop: trackers are closed, and the exit code requests that the job is queued again.
        Otherwise it restores the earlier handlers.

            with accelerator.handle_preemption():
                for batch in loader:
                    ...
                    if accelerator.should_stop:
                        accelerator.save_state("preempted")
                        break

        Within a second after a signal, the ranks agree on a step that none has passed yet. Steps without a signal cost
        less than a microsecond. Loops without `backward` must call `advance()` of the result once per iteration.
        Schedulers also signal the workers of loaders; workers of prepared loaders ignore it if this is called before
        they start.

        Args:
            signals: The signals to handle. Default: SIGTERM and SIGUSR1.
            grace_period_s: Seconds from the signal until a rank that is still running is killed. Default: never.
            exit_code: Exit code of the process. Default: 75, `EX_TEMPFAIL`.

        Raises:
            ConfigError: If an argument is invalid.
            StateError: If signals are being handled already, or outside the main thread.
        """
        if self._preemption is not None and self._preemption.is_open:
            raise StateError(
                "Preemption is being handled already. Call `close()` on the result of the first call."
            )
        self._preemption = Preemption(
            signals=SIGNALS if signals is None else tuple(signals),
            grace_period_s=grace_period_s,
            exit_code=exit_code,
            end=self.end_training,
        )
        for loader in self._prepared.loaders.values():
            self._preemption.keep_workers(loader)
        self._stepper.call_on_window_end(self._preemption.advance)
        return self._preemption

    def _resumes_loaders(self) -> bool:
        """Whether `load_state` resumes loaders in the middle of their epoch by default."""
        return self.configuration.loader.use_stateful_dataloader or self._preemption is not None

    # Models

    should_save_model: bool = delegated("_checkpointer.is_model_writer")
    """Whether this rank writes model files: rank 0, or each machine's rank 0 with `save_on_each_node`."""

    def unwrap_model(
        self, model: Model, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Model:
        """Return the original model without the wrappers added by `prepare`.

        Args:
            model: A prepared model.
            keep_fp32_wrapper: Keep the mixed-precision forward.
            keep_torch_compile: Keep what ``torch.compile(model)`` returned around the model. What `prepare` compiled in
                place has no wrapper and stays compiled; `torch.compiler.set_stance` runs it uncompiled.
        """
        inner = self._strategy.unwrap(
            model, keep_fp32_wrapper=keep_fp32_wrapper, keep_torch_compile=keep_torch_compile
        )
        return cast(Model, inner)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> Mapping[str, Tensor]:
        """Return the full state dict of a prepared model, with the names of the original model.

        If parameters are sharded, every rank must call it: rank 0 gets full tensors on the CPU, other ranks an empty
        dict. Otherwise the tensors are the parameters, on their device, with their shapes.

            weights = accelerator.get_state_dict(model)  # on every rank
            if accelerator.is_main_process:
                torch.save(weights, "weights.pt")

        Args:
            model: A prepared model.
            unwrap: Remove the prefixes that wrappers add to names.
        """
        with torch.inference_mode(False):  # torch cannot detach a `DTensor` in inference mode
            return full_model_state(self._strategy, model) if unwrap else model.state_dict()

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Save the weights of a prepared model in files that plain PyTorch and `from_pretrained` read.

        If the model is sharded, every rank must call it, and it returns when all files are written. Otherwise rank 0
        does not wait for other ranks, and may be the only rank that calls it.

            accelerator.save_model(model, "weights", max_shard_size="5GB")

        Args:
            model: A prepared model.
            save_directory: Folder; created if missing.
            max_shard_size: Largest size of one file, in bytes or such as `"5GB"`. Default: 10 GB.
            safe_serialization: Write safetensors files; otherwise `pytorch_model.bin` by `torch.save`. Default: True.

        Raises:
            CheckpointError: If a tensor is on the meta device; names it. On every rank, if the model is sharded and a
                rank does not call it within 45 seconds.
        """
        self._checkpointer.save_model(
            model, save_directory, max_shard_size=max_shard_size, safe_serialization=safe_serialization
        )

    # Checkpoints

    project_configuration: ProjectConfiguration = delegated("_checkpointer.project")
    """Folders of the project, and how its checkpoints are named and retained."""

    save_iteration: int = delegated("_checkpointer.project.iteration")
    """Number of the next automatically named checkpoint."""

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Include `objects` in `save_state` and `load_state`. Register the same objects in the same order when loading.

            accelerator.register_for_checkpointing(ema, replay_buffer)

        Args:
            *objects: Objects with `state_dict` and `load_state_dict`, whose states consist of tensors, numbers, strings
                and containers of these.

        Raises:
            ConfigError: If an object lacks one of the methods; names it.
            CheckpointError: If a state could not be loaded again safely; names the value and its class.
        """
        self._checkpointer.register(*objects)

    def register_save_state_pre_hook(
        self, hook: Callable[[list[nn.Module], list[Mapping[str, Any]], str], None]
    ) -> RemovableHandle:
        """Call `hook(models, weights, output_dir)` on every rank before a checkpoint is written.

        `models` are the prepared models without wrappers. A hook that removes an entry from `weights` must save it
        to `output_dir`, a temporary folder that gets its final name when the checkpoint is complete.

        Returns:
            A handle; its `remove()` unregisters the hook.
        """
        return add_hook(self._checkpointer.save_hooks, hook)

    def register_load_state_pre_hook(self, hook: Callable[[list[nn.Module], str], None]) -> RemovableHandle:
        """Call `hook(models, input_dir)` on every rank before a checkpoint is loaded.

        `models` are the prepared models without wrappers; none if `load_state` does not load models. A hook that
        removes a model from the list must load it.

        Returns:
            A handle; its `remove()` unregisters the hook.
        """
        return add_hook(self._checkpointer.load_hooks, hook)

    @overload
    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = ...,
        safe_serialization: bool = ...,
        *,
        blocking: Literal[True] = ...,
        metrics: Mapping[str, float | Tensor] | None = ...,
        **save_model_func_kwargs: Any,
    ) -> str: ...
    @overload
    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = ...,
        safe_serialization: bool = ...,
        *,
        blocking: Literal[False],
        metrics: Mapping[str, float | Tensor] | None = ...,
        **save_model_func_kwargs: Any,
    ) -> accel_checkpoint.SaveHandle: ...

    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        safe_serialization: bool = True,
        *,
        blocking: bool = True,
        metrics: Mapping[str, float | Tensor] | None = None,
        **save_model_func_kwargs: Any,
    ) -> str | accel_checkpoint.SaveHandle:
        """Save models, optimizers, schedulers, loaders, scaler, random states and registered objects.

            accelerator.save_state("checkpoints/step_1000")

        Every rank must call it. If only rank 0 does, it waits five seconds for the other ranks and saves without their
        random states, with one warning; if the model is sharded, that is an error. The checkpoint is written to a
        temporary folder and renamed when it is complete. Only then are an earlier checkpoint of the same name and those
        beyond `total_limit` removed. If the save fails, the earlier checkpoints are unchanged.

        Args:
            output_dir: Folder of the checkpoint. Leave it out with `automatic_checkpoint_naming`, which saves to
                `checkpoints/checkpoint_<iteration>` in the project's folder.
            safe_serialization: Save weights as safetensors, else by `torch.save`. Default: True.
            blocking: Return when the checkpoint is complete. Otherwise copy the state, return, and write in the
                background. Default: True.
            metrics: Numbers, or 0-dim tensors on any device, recorded with the checkpoint, such as a validation loss,
                for a `Retention` that keeps the best checkpoints. Rank 0's values are used.
            **save_model_func_kwargs: `max_shard_size`, such as `"5GB"`: the largest size of one weight file.
                `checkpoint_format`: the format of models and optimizers, in place of the strategy's; `"full"` is read
                by every strategy and by plain PyTorch. In DeepSpeed's format also `exclude_frozen_parameters`,
                `client_state` and `save_latest`, which are passed to DeepSpeed.

        Returns:
            The folder; without `blocking` a handle with `done()`, `wait()` and `exception()`.

        Raises:
            CheckpointError: On every rank, if saving failed on any rank, with its reason; without `blocking` it is
                raised by the handle or by `end_training`. On every rank, too, if the model is sharded and a rank does
                not call it within 45 seconds.
            ConfigError: If there is no folder to save to, or it exists and is no checkpoint.
        """
        return self._checkpointer.save(
            output_dir,
            safe_serialization=safe_serialization,
            blocking=blocking,
            metrics=metrics or {},
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
        skip: Collection[str] | None = None,
        key_map: Mapping[str, str] | None = None,
        trusted: bool = False,
        **load_model_func_kwargs: Any,
    ) -> bool:
        """Load a checkpoint into the prepared and registered objects, in their order of preparation.

            accelerator.load_state("checkpoints/step_1000")
            accelerator.load_state("pretrained", only="models", key_map={"backbone.": "encoder."})

        Every rank must call it. Files are never unpickled freely. Checkpoints written by Accelerate are read too.

        Args:
            input_dir: Folder of the checkpoint. Default: the newest complete checkpoint of the project.
            load_kwargs: `map_location` and `weights_only`, accepted for compatibility: files are read to the CPU, and
                `weights_only=False` is an error.
            verify: Compare all files with their digests first, not each file when it is read. Default: False.
            strict: Raise an error for missing files and states that do not fit; otherwise warn about each and load the
                rest. Loaders may be more or fewer than were saved, and unused files are one warning. Default: True.
            restore_loaders: Resume loaders in the middle of their epoch, else start it over in the same order, for
                scripts that skip batches. Default: with `use_stateful_dataloader` and after `handle_preemption`.
            missing_ok: Return False if the project has no complete checkpoint yet. Only without `input_dir`.
            only: Load only these kinds, one or several of `models`, `optimizers`, `schedulers`, `loaders`, `scaler`,
                `custom` and `random_states` (with the accumulation and the number of steps).
            skip: Kinds not to load, such as `["loaders", "random_states"]`.
            key_map: The prefix of weights in the model by their prefix in the checkpoint, if they differ. The longest
                match counts; the empty prefix matches every name.
            trusted: With a torch before 2.10, load pickled files of others, which can make it run code. Checkpoints of
                this process and in the project's folder do not need it. Default: False.
            **load_model_func_kwargs: DeepSpeed's names, for every strategy: `load_module_strict`, which is `strict` of
                weights, `load_optimizer_states`, `load_lr_scheduler_states` and `load_module_only`.

        Returns:
            Whether a checkpoint was loaded, the same on every rank; False only with `missing_ok`.

        Raises:
            CheckpointError: On every rank, if any rank cannot load it; names the file and the object.
            ConfigError: If an argument is unknown or has no effect.
        """
        return self._checkpointer.load(
            input_dir,
            missing_ok=missing_ok,
            trusted=trusted,
            restore_loaders=restore_loaders,
            load_kwargs=load_kwargs,
            engine_options=load_model_func_kwargs,
            only=only,
            skip=skip,
            verify=verify,
            is_strict=strict,
            key_map=key_map or {},
        )

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Save `obj` to a file on the main process only (on each machine's with `save_on_each_node`).

        Args:
            obj: The object; a dict of tensors with `safe_serialization`.
            f: Path of the file.
            safe_serialization: Write a safetensors file; otherwise use `torch.save`. Default: False.
        """
        from accel_checkpoint.functions import save

        on_each_node = self._checkpointer.project.save_on_each_node
        save(obj, f, save_on_each_node=on_each_node, safe_serialization=safe_serialization)

    # Trackers

    project_dir: str | None = delegated("_checkpointer.project.project_dir")
    """Folder for everything the project writes."""

    logging_dir: str | None = delegated("_checkpointer.project.logging_dir")
    """Folder of the local trackers."""

    @property
    def log_with(self) -> list[str | accel_trackers.GeneralTracker]:
        """The trackers to start, as selected by `log_with`."""
        return self._trackers.chosen

    @log_with.setter
    def log_with(self, value: Sequence[str | LoggerType | accel_trackers.GeneralTracker]) -> None:
        self._trackers.choose(value)

    @property
    def trackers(self) -> list[accel_trackers.GeneralTracker]:
        """The started trackers. After they were read, `log` calls them directly, so that the order of calls is kept."""
        return self._trackers.take_all()

    @trackers.setter
    def trackers(self, value: Sequence[accel_trackers.GeneralTracker]) -> None:
        self._trackers.replace(value)

    def init_trackers(
        self,
        project_name: str,
        config: Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        on_error: Literal["warn", "raise"] = "warn",
    ) -> None:
        """Start a run in every tracker of `log_with`. Every rank must call it.

            accelerator = Accelerator(log_with="wandb")
            accelerator.init_trackers("digits", config={"lr": 1e-3}, init_kwargs={"wandb": {"tags": ["baseline"]}})

        Args:
            project_name: Name of the project, or of the run for trackers without projects.
            config: Hyperparameters of the run, logged once.
            init_kwargs: Keyword arguments for the constructor of each tracker, by its name.
            on_error: What to do if a tracker fails to log: `warn` once, and raise in `end_training`; or `raise` in the
                next `log`. Default: `warn`.

        Raises:
            ConfigError: If trackers were already started, or `on_error` is invalid.
        """
        self._trackers.start(project_name, config, init_kwargs, on_error)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Return the tracker called `name`; with `unwrap`, the run object of its library.

            accelerator.get_tracker("wandb", unwrap=True).watch(model)

        After that, `log` calls this tracker directly, so that the order of calls is kept. On ranks that do not log, the
        methods of the tracker do nothing, and the run object is one that accepts every call.

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
        """Log `values` to every started tracker. Slow trackers are called from a background queue.

            accelerator.log({"loss": loss, "lr": scheduler.get_last_lr()[0]}, step=step)

        Args:
            values: Numbers, strings, one-element tensors, or dicts of these, by name.
            step: Training step that they belong to.
            log_kwargs: Keyword arguments for the `log` of each tracker, by its name.

        Raises:
            TrackerError: If a tracker failed and `init_trackers` was called with `on_error="raise"`.
        """
        self._trackers.log(values, step, log_kwargs)


if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept every name
    __getattr__, __dir__, _names = attach_stub(__name__, suffix="_names")
    __all__ = sorted(["Accelerator", *_names])  # noqa: PLE0605
