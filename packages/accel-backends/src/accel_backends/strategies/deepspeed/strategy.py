"""The strategy `deepspeed`: each model that is trained has an engine of DeepSpeed's, which steps when it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from accel_backends.handlers.precision import GradScalerKwargs
from accel_backends.optimizer import AcceleratedOptimizer
from accel_backends.plugins.deepspeed.loading import join_group, load_deepspeed
from accel_backends.plugins.deepspeed.plugin import DeepSpeedPlugin
from accel_backends.scheduler import AcceleratedScheduler
from accel_backends.strategies.bundle import Bundle, Placement, register_kind
from accel_backends.strategies.capabilities import NOT_APART, ONLY_DDP_HAS_HOOKS, Capabilities, Feature, Sync
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.deepspeed.checkpoints.engine_states import EngineStates
from accel_backends.strategies.deepspeed.dummies import DummyOptim, DummyScheduler
from accel_backends.strategies.deepspeed.engine_set import EngineSet
from accel_backends.strategies.deepspeed.engines import place_for_evaluation, start_engine
from accel_backends.strategies.deepspeed.gathering import gather_facts
from accel_backends.strategies.deepspeed.layer_cuts import num_sharing
from accel_backends.strategies.deepspeed.pairing import Part, check_combination, pair, refuse_without_model
from accel_backends.strategies.deepspeed.wrappers import (
    DeepSpeedEngineWrapper,
    DeepSpeedOptimizerWrapper,
    DeepSpeedSchedulerWrapper,
)
from accel_backends.unwrap import register_container
from accel_state import AcceleratorState
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel_backends.strategies.deepspeed.sequences import SharedSequences
    from accel_backends.strategies.deepspeed.shared_layers import SharedLayers

_NOTHING = nullcontext()


class DeepSpeedStrategy(EngineStates):
    """Hands models to DeepSpeed, one engine each, and keeps to itself when they reduce, clip and step."""

    name: ClassVar[str] = "deepspeed"
    sequences: SharedSequences | None
    capabilities: ClassVar[Capabilities] = Capabilities(
        shards_parameters=True,
        needs_optimizer=True,
        mesh_axes=frozenset({"dp_replicate", "dp_shard", "sp", "tp"}),
        sp_backend="deepspeed",
        # Those that DeepSpeed has an accelerator for and we a vendor.
        devices=frozenset({"cpu", "cuda", "hpu", "mlu", "npu", "sdaa", "xpu"}),
        lacks={
            Feature.JOIN: "a rank that has no batch left would keep the others waiting. Let all ranks get as many "
            "batches with `even_batches=True`.",
            Feature.CLIP_BY_VALUE: "DeepSpeed keeps the gradients to itself. Use `clip_grad_norm_`.",
            Feature.COMMUNICATION_HOOK: ONLY_DDP_HAS_HOOKS,
            Feature.LOCAL_SGD: NOT_APART,
        },
    )

    open_gradients = None  # ZeRO takes them out of the parameters in backward

    def setup(self, context: StrategyContext) -> None:
        """Take in the run, and import DeepSpeed for its device.

        Raises:
            NotAvailableError: If DeepSpeed is not installed.
            ConfigError: If it was imported for another device, losses are to be scaled by torch, ranks are to share
                both sequences and layers, or others share layers already.
        """
        super().setup(context)
        if GradScalerKwargs in context.handlers:
            raise ConfigError(
                "`GradScalerKwargs` has no effect with DeepSpeed, which scales losses by itself. Set `loss_scale` and "
                "its neighbours in the `fp16` section of the DeepSpeed config."
            )
        deepspeed = load_deepspeed(context.runtime)
        if any(plugin.zero_stage == 3 for plugin in self._plugins()):
            join_group(deepspeed)
        register_container(deepspeed.DeepSpeedEngine)
        register_kind(DummyOptim, "optimizers")
        register_kind(DummyScheduler, "schedulers")
        for schedule in deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES:
            register_kind(getattr(deepspeed.runtime.lr_schedules, schedule), "schedulers")
        context.precision.leave_scaling_to_engine()
        self._is_deferred = False
        self._engines = EngineSet()
        self.sequences = self._shared_sequences()
        self._layers = self._shared_layers()

    @property
    def engines(self) -> EngineSet:
        """The engines of the prepared models."""
        return self._engines

    def prepare(
        self, bundle: Bundle, *, device_placement: Placement | None = None, evaluation_mode: bool = False
    ) -> Bundle:
        """Return the prepared objects in the same order. Communicates: all ranks."""
        models = [self._engines.bare(model) for model in bundle.models]
        prepared_models: list[nn.Module] = []
        ready: dict[int, Any] = {
            id(one.client): one for one in self._optimizers if isinstance(one, DeepSpeedOptimizerWrapper)
        }
        new = [optimizer for optimizer in bundle.optimizers if id(optimizer) not in ready]
        for part in pair(models, [] if evaluation_mode else new, bundle.schedulers):
            model, optimizer, scheduler = self._start(part, bundle.loaders)
            prepared_models.append(model)
            ready[id(part.optimizer)] = optimizer
            ready[id(part.scheduler)] = scheduler
        wrapped = [ready[id(optimizer)] for optimizer in bundle.optimizers]
        return Bundle(
            models=prepared_models,
            optimizers=wrapped,
            schedulers=[
                ready.get(id(scheduler)) or self.prepare_scheduler(scheduler, optimizers=wrapped)
                for scheduler in bundle.schedulers
            ],
            loaders=bundle.loaders,
        )

    def prepare_loader(
        self, loader: Any, prepare: Callable[[Any], Any], *, models: Sequence[nn.Module] = ()
    ) -> Any:
        """Return a prepared loader, of this rank's part of each sequence if it came with a model."""
        prepared = prepare(loader)
        return self.sequences.wrap_loader(prepared) if models and self.sequences is not None else prepared

    def _shared_sequences(self) -> SharedSequences | None:
        layout = self.context.layout
        if layout.sp == 1:
            return None
        rank = layout.index(self.context.topology.rank, "sp")
        config = AcceleratorState().parallelism_config
        assert config is not None  # it says `sp_size`
        assert config.sp_handler is not None
        from accel_backends.strategies.deepspeed.sequences import SharedSequences  # few runs need it

        return SharedSequences(layout.sp, rank, config.sp_handler)

    def _shared_layers(self) -> SharedLayers | None:
        layout = self.context.layout
        if num_sharing() not in (1, layout.tp):
            raise ConfigError(
                f"`tp_size` is {layout.tp}, but an `Accelerator` made before lets other ranks share layers, and "
                "DeepSpeed knows one such number for the whole process. Call the `free_memory()` of that one first."
            )
        if layout.tp == 1:
            return None
        if layout.sp > 1:
            raise ConfigError(
                f"`sp_size` {layout.sp} and `tp_size` {layout.tp} cannot be combined with DeepSpeed, which shares "
                "either sequences or layers. Set one of them to 1, or use FSDP, which does both."
            )
        mesh = AcceleratorState().device_mesh
        assert mesh is not None  # it has several ranks
        from accel_backends.strategies.deepspeed.shared_layers import SharedLayers  # brings DTensor

        return SharedLayers(mesh["tp"], self.context.device)

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Prepare one model that is not trained; to train it, prepare it together with its optimizer."""
        return self.prepare(Bundle(models=[model]), evaluation_mode=True).models[0]

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> DeepSpeedOptimizerWrapper:
        """Return an optimizer that was prepared before.

        Raises:
            ConfigError: If it is a new one, which needs its model beside it.
        """
        if isinstance(optimizer, DeepSpeedOptimizerWrapper):
            return optimizer
        refuse_without_model(optimizer)

    def prepare_scheduler(
        self, scheduler: Any, *, optimizers: Sequence[torch.optim.Optimizer] = ()
    ) -> AcceleratedScheduler:
        """Wrap a scheduler of the user's to follow its optimizer.

        Raises:
            ConfigError: If it only stands for one that an engine makes, and its model is not prepared with it.
        """
        if isinstance(scheduler, DummyScheduler):
            raise ConfigError(
                "A `DummyScheduler` was prepared without its model and optimizer, whose engine makes the scheduler. "
                "Prepare them in one call."
            )
        return super().prepare_scheduler(scheduler, optimizers=optimizers)

    def _is_made_from(self, prepared: AcceleratedOptimizer, optimizer: Any) -> bool:
        return super()._is_made_from(prepared, optimizer) or optimizer is getattr(prepared, "client", None)

    def _start(self, part: Part, loaders: Sequence[Any]) -> tuple[nn.Module, Any, Any]:
        """Return the prepared model, its optimizer, and a scheduler that the engine steps."""
        plugin = self._plugin()
        if part.optimizer is not None:
            check_combination(part, plugin.deepspeed_config)
        config = plugin.fill(gather_facts(part, loaders=loaders, context=self.context)).config
        self._engines.end(part.model)
        is_trained = part.optimizer is not None
        stage = config.get("zero_optimization", {}).get("stage", 0)
        if not is_trained and stage != 3:
            return place_for_evaluation(part.model, config, context=self.context), None, None
        if stage == 3:
            plugin.set_moe_leaf_modules(part.model)
        engine = start_engine(
            part, config, context=self.context, sequences=self.sequences, layers=self._layers
        )
        if not is_trained:
            self._engines.add_evaluated(engine)
            return engine, None, None
        self._engines.check_accumulation(config["gradient_accumulation_steps"], self.context.gradient)
        wrapper = DeepSpeedEngineWrapper(engine)
        self._engines.add(wrapper)
        optimizer = DeepSpeedOptimizerWrapper(engine.optimizer, wrapper, part.optimizer)
        self._optimizers.add(optimizer)
        if engine.lr_scheduler is None:
            return engine, optimizer, None
        return engine, optimizer, DeepSpeedSchedulerWrapper(engine.lr_scheduler, [optimizer])

    def _plugins(self) -> Iterable[DeepSpeedPlugin]:
        """Return all plugins of the run."""
        plugins = AcceleratorState().deepspeed_plugins if AcceleratorState.is_initialized() else None
        return (plugins or {}).values()

    def _plugin(self) -> DeepSpeedPlugin:
        """Return the plugin that is selected now."""
        plugin = AcceleratorState().deepspeed_plugin if AcceleratorState.is_initialized() else None
        chosen = plugin or self.context.plugin
        return chosen if isinstance(chosen, DeepSpeedPlugin) else DeepSpeedPlugin()

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, and complete them unless a later backward is to do that.

        ``scale_wrt_gas=False`` says that the loss has been divided by the number of micro-batches already.
        """
        is_last = self.context.gradient.sync_gradients and not self._is_deferred
        if kwargs.pop("scale_wrt_gas", True) and num_steps != 1:
            loss = loss / num_steps
        if self.sequences is not None:
            loss = loss / self.sequences.num_summed
        self._engines.backward(loss, is_last=is_last, **kwargs)

    def scale_gradients(self, models: Iterable[nn.Module], factor: float | torch.Tensor) -> None:
        """Multiply the complete gradients of ``models``."""
        for engine in self._engines.of(models):
            engine.scale_gradients(float(factor))

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context in which backward completes no gradients; those after it do.

        ZeRO 2 and 3 reduce in each backward all the same: no rank holds whole gradients there.
        """
        return self._deferred() if sync is Sync.LATER else _NOTHING

    @contextmanager
    def _deferred(self) -> Iterator[None]:
        before, self._is_deferred = self._is_deferred, True
        try:
            yield
        finally:
            self._is_deferred = before

    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor | None:
        """Let the next step clip the norm of all gradients together; return what it is. Communicates: all ranks.

        None while gradients are not complete: then only DeepSpeed knows what there is.

        Raises:
            ConfigError: If not all trained parameters of an engine are given, or the norm is not the 2-norm.
        """
        if norm_type != 2:
            raise ConfigError(
                f"`norm_type` must be 2 with DeepSpeed, which clips by no other norm, got {norm_type}."
            )
        return self._engines.clip(parameters, max_norm)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Refuse: DeepSpeed does not clip by value.

        Raises:
            ConfigError: Always.
        """
        self.capabilities.refuse(Feature.CLIP_BY_VALUE, strategy=self.name)

    def live_engines(self) -> Iterable[Any]:
        """Return DeepSpeed's engines, also those that only compute outputs."""
        return self._engines.all()

    def release(self) -> None:
        """End all engines: their models may then get new ones."""
        self._engines.clear()
        self._optimizers.clear()
        if self.sequences is not None:
            self.sequences.detach()
        if self._layers is not None:
            self._layers.detach()
