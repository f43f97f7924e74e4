"""The strategy `megatron`: megatron-core trains a model of its own in place of one of transformers."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import torch
from torch import nn

from accel_backends.handlers.grad_scaler import GradScalerKwargs
from accel_backends.plugins.megatron import MegatronLMPlugin
from accel_backends.plugins.megatron_parsers import optimizer_settings
from accel_backends.strategies.bundle import Bundle, InTurn, Placement, register_kind
from accel_backends.strategies.capabilities import NOT_APART, ONLY_DDP_HAS_HOOKS, Capabilities, Feature, Sync
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.megatron.datasets import MegatronLMDummyDataLoader
from accel_backends.strategies.megatron.engine import MegatronEngine
from accel_backends.strategies.megatron.groups import agree_on_seed, seeded, start_groups
from accel_backends.strategies.megatron.loaders import batch_size_of, with_larger_batches
from accel_backends.strategies.megatron.model_parts import build_parts, model_arguments, transformer_config
from accel_backends.strategies.megatron.optimizers import (
    further_names,
    in_format,
    make_optimizer,
    make_scheduler,
    with_reduction,
)
from accel_backends.strategies.megatron.packages import check_device, core
from accel_backends.strategies.megatron.run_view import RunView
from accel_backends.strategies.megatron.states import bare_parts, model_state, optimizer_state
from accel_backends.strategies.megatron.train_steps import TRAIN_STEPS
from accel_backends.strategies.megatron.wrappers import (
    MegatronLMDummyScheduler,
    MegatronLMOptimizerWrapper,
    MegatronLMSchedulerWrapper,
)
from accel_backends.strategies.strategy import Strategy
from accel_state.errors import ConfigError, StateError
from accel_state.user_warnings import warn_user

_NOTHING = nullcontext()
_ADVICE = "Save and load it with `accelerator.save_state` and `accelerator.load_state`"


class MegatronStrategy(Strategy):
    """Makes one model of megatron-core, and lets its schedule run forward and backward of each batch together."""

    name: ClassVar[str] = "megatron"
    capabilities: ClassVar[Capabilities] = Capabilities(
        shards_parameters=True,
        needs_optimizer=True,
        mesh_axes=frozenset({"pp", "dp_replicate", "dp_shard", "cp", "tp"}),
        devices=frozenset({"cpu", "cuda"}),  # on CPUs all but models, which megatron-core makes on CUDA alone
        lacks={
            Feature.JOIN: "all ranks take part in every batch. Let all get as many batches with `even_batches=True`.",
            Feature.CLIP_BY_VALUE: "Megatron-LM keeps the gradients to itself. Use `gradient_clipping` of the "
            "MegatronLMPlugin, or `clip_grad_norm_`.",
            Feature.COMMUNICATION_HOOK: ONLY_DDP_HAS_HOOKS,
            Feature.COMPILE: "layers of megatron-core are fused, not compiled. Leave `dynamo_backend` out.",
            Feature.LOCAL_SGD: NOT_APART,
            Feature.SAVE_MODEL: "the layers are megatron-core's own, not those of the model that was prepared, and are "
            f"spread over the ranks. {_ADVICE}.",
            Feature.SEVERAL_MODELS: "it trains one model with one optimizer. Prepare one of each.",
        },
    )

    @property
    def checkpoint_format(self) -> str:
        """The format in which model and optimizer are saved: the parts of each rank."""
        return "megatron"

    open_gradients = None  # megatron-core keeps them in buffers

    def setup(self, context: StrategyContext) -> None:
        """Take in the run, and make the process groups of megatron-core. Communicates: all ranks.

        Raises:
            NotAvailableError: If megatron-core is not installed.
            ConfigError: If losses are to be scaled by torch, models to be compiled, or layers exchanged.
        """
        core()
        super().setup(context)
        if GradScalerKwargs in context.handlers:
            raise ConfigError(
                "`GradScalerKwargs` has no effect with Megatron-LM, which scales losses by itself. Set "
                "`initial_loss_scale` and its neighbours in `other_megatron_args` of the MegatronLMPlugin."
            )
        if context.dynamo is not None:
            self.capabilities.refuse(Feature.COMPILE, strategy=self.name)
        context.precision.leave_scaling_to_engine()
        context.runtime.ensure_group()
        self._plugin = context.plugin if isinstance(context.plugin, MegatronLMPlugin) else MegatronLMPlugin()
        self._engine: MegatronEngine | None = None
        self._source: weakref.ref[nn.Module] | None = None
        register_kind(MegatronLMDummyScheduler, "schedulers")
        register_kind(MegatronLMDummyDataLoader, "loaders")
        start_groups(context.layout, self._plugin)

    def prepare(
        self, bundle: Bundle, *, device_placement: Placement | None = None, evaluation_mode: bool = False
    ) -> Bundle:
        """Return the prepared objects in the same order. Communicates: all ranks.

        Raises:
            ConfigError: If there is not one model with one optimizer, or megatron-core has nothing like them.
        """
        self._note_batch_sizes(bundle.loaders)
        trained = [] if evaluation_mode else bundle.optimizers
        optimizers: list[torch.optim.Optimizer] = []
        schedulers: list[Any] = []
        if bundle.models:
            model, *others = bundle.models
            if others or len(trained) > 1:
                self.capabilities.refuse(Feature.SEVERAL_MODELS, strategy=self.name)
            engine, optimizer = self._start(model, trained[0] if trained else None)
            optimizers = [one for one in (optimizer,) if one is not None]
        elif trained:
            optimizers = [self.prepare_optimizer(one) for one in trained]
        schedulers = [self.prepare_scheduler(one, optimizers=optimizers) for one in bundle.schedulers]
        models: list[nn.Module] = [engine] if bundle.models else []
        return Bundle(models=models, optimizers=optimizers, schedulers=schedulers, loaders=bundle.loaders)

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Prepare a model that is not trained; to train it, prepare it together with its optimizer."""
        return self.prepare(Bundle(models=[model]), evaluation_mode=True).models[0]

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> MegatronLMOptimizerWrapper:
        """Return an optimizer that was prepared before.

        Raises:
            ConfigError: If it is a new one, which needs its model beside it.
        """
        for known in self._optimizers:
            if isinstance(known, MegatronLMOptimizerWrapper) and self._is_made_from(known, optimizer):
                return known
        raise ConfigError(
            f"The {type(optimizer).__name__} was prepared without its model. megatron-core makes its optimizer from a "
            "model: prepare both in one call."
        )

    def prepare_scheduler(
        self, scheduler: Any, *, optimizers: Sequence[torch.optim.Optimizer] = ()
    ) -> MegatronLMSchedulerWrapper:
        """Return megatron-core's schedule for a `MegatronLMDummyScheduler`.

        Raises:
            ConfigError: If it is another scheduler, or its optimizer is not prepared.
        """
        if isinstance(scheduler, MegatronLMSchedulerWrapper):
            return scheduler
        if not isinstance(scheduler, MegatronLMDummyScheduler):
            raise ConfigError(
                f"`{type(scheduler).__name__}` cannot move the learning rate of megatron-core's optimizer. Prepare a "
                "`MegatronLMDummyScheduler`, and set `lr_decay_style` of the MegatronLMPlugin."
            )
        known = [one for one in self._optimizers if isinstance(one, MegatronLMOptimizerWrapper)]
        own = next((one for one in known if self._is_made_from(one, scheduler.optimizer)), None)
        if own is None or own.client is None:
            raise ConfigError(
                "The optimizer of a `MegatronLMDummyScheduler` is not prepared. Prepare the model, its optimizer and "
                "the scheduler in one call."
            )
        made = make_scheduler(scheduler, own.optimizer, self._plugin, optimizer_settings(own.client))
        if own.engine is not None:
            own.engine.scheduler = made
        return MegatronLMSchedulerWrapper(made, [own])

    def _is_made_from(self, prepared: Any, optimizer: Any) -> bool:
        return super()._is_made_from(prepared, optimizer) or optimizer is getattr(prepared, "client", None)

    def _start(
        self, model: nn.Module, client: torch.optim.Optimizer | None
    ) -> tuple[MegatronEngine, MegatronLMOptimizerWrapper | None]:
        """Return the engine of a model, and its optimizer."""
        source = None if self._source is None else self._source()
        if self._engine is not None:
            if model is not self._engine and model is not source:
                raise ConfigError(
                    f"Megatron-LM trains one model, and another was prepared before this {type(model).__name__}. Call "
                    "`accelerator.free_memory()` in between."
                )
            if client is None:
                return self._engine, None
            if self._engine.optimizer is not None:
                return self._engine, self.prepare_optimizer(client)
            model = source or model  # it computed outputs only; now it is trained
        plugin, context = self._plugin, self.context
        if not all(parameter.is_meta for parameter in model.parameters()):
            warn_user(
                f"Megatron-LM starts from random values, so those of this `{type(model).__name__}` are unused. Load a "
                "checkpoint of Megatron-LM by `load_state`, or create the model on the meta device."
            )
        plugin.megatron_lm_default_args.clear()
        plugin.set_network_size_args(model)
        arguments = model_arguments(plugin, context.layout)
        config = transformer_config(
            arguments,
            plugin,
            context.layout,
            dtype=context.precision.dtype,
            device=context.device,
            further=further_names(),
        )
        if client is not None:
            check_device()
        with seeded(agree_on_seed(), layout=context.layout, rank=context.topology.rank):
            parts = build_parts(arguments, config, plugin, device=context.device)
        run, made, optimizer = RunView(), None, None
        if client is None:
            parts = in_format(parts, config)
        else:
            parts = with_reduction(parts, config, plugin)
            made = make_optimizer(optimizer_settings(client), parts, config, plugin)
        kind: Any = plugin.custom_train_step_class or TRAIN_STEPS[arguments["model_type_name"]]
        step = kind(run, SimpleNamespace(**arguments), **(plugin.custom_train_step_kwargs or {}))
        engine = MegatronEngine(run, parts, made, None, train_step_handler=step)
        if client is not None:
            optimizer = MegatronLMOptimizerWrapper(made, engine=engine, client=client)
            self._optimizers.add(optimizer)
        self._engine, self._source = engine, weakref.ref(model)
        return engine, optimizer

    def _note_batch_sizes(self, loaders: Sequence[Any]) -> None:
        """Let the plugin know how many rows a micro-batch has."""
        if not loaders:
            return
        plugin = self._plugin
        sizes = [batch_size_of(loader) for loader in loaders]
        if self.context.scheduling.split_batches:
            ranks = self.context.layout.num_data_ranks
            sizes = [max(1, size // ranks // plugin.num_micro_batches) for size in sizes]
        plugin.micro_batch_size = min(sizes) if plugin.is_train_batch_min else max(sizes)

    def prepare_loader(
        self, loader: Any, prepare: Callable[[Any], Any], *, models: Sequence[nn.Module] = ()
    ) -> Any:
        """Return a prepared loader of all micro-batches of a step at once."""
        if isinstance(loader, MegatronLMDummyDataLoader):
            return InTurn(*loader.build_train_valid_test_data_iterators(RunView(), prepare))
        if not self.context.scheduling.split_batches:
            loader = with_larger_batches(loader, self._plugin.num_micro_batches)
        return prepare(loader)

    def unwrap(
        self,
        model: nn.Module,
        *,
        keep_fp32_wrapper: bool = True,
        keep_torch_compile: bool = True,
        recursive: bool = False,
    ) -> nn.Module:
        """Return this rank's part of the model of megatron-core, several as an `nn.ModuleList`."""
        if not isinstance(model, MegatronEngine):
            return model
        parts = bare_parts(model)
        return parts[0] if len(parts) == 1 else nn.ModuleList(parts)

    def forward_backward(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: Callable[[nn.Module, Any], torch.Tensor],
        *,
        num_steps: int = 1,
        num_items: Callable[[Any], float | torch.Tensor] | None = None,
        weight: float = 1.0,
    ) -> torch.Tensor:
        """Compute the gradients of a batch, or the loss alone without gradients; return the loss. All ranks together.

        Raises:
            ConfigError: If ``loss_fn`` returns anything but the loss of the model, or items are counted.
        """
        if not isinstance(model, MegatronEngine):
            raise ConfigError(f"The {type(model).__name__} was not prepared. Pass what `prepare` returned.")
        if num_items is not None:
            _refuse_weights()
        with model.weighted(weight / num_steps):
            loss = loss_fn(model, batch)
        if torch.is_grad_enabled():
            self.backward(loss)
        return loss.detach()

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Do nothing: calling the model has computed the gradients.

        Raises:
            ConfigError: If ``loss`` is not what the model returned.
        """
        if self._engine is None or loss is not self._engine.last_loss:
            raise ConfigError(
                "`backward` got another loss than the one that the model returned, whose gradients Megatron-LM has "
                "computed already. Change the loss in `custom_loss_function` or `custom_train_step_class` of the "
                "MegatronLMPlugin; `calculate_per_token_loss` weighs by tokens."
            )

    def scale_gradients(self, models: Iterable[nn.Module], factor: float | torch.Tensor) -> None:
        """Refuse: only the loss function weighs losses.

        Raises:
            ConfigError: Always.
        """
        _refuse_weights()

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context that does nothing: gradients are complete after each batch."""
        return _NOTHING

    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor | None:
        """Let the next steps clip the norm of all gradients together; ``grad_norm`` of the model is that of the last.

        Raises:
            ConfigError: If the norm is not the 2-norm.
        """
        if norm_type != 2:
            raise ConfigError(
                f"`norm_type` must be 2 with Megatron-LM, which clips by no other norm, got {norm_type}."
            )
        if self._engine is not None and self._engine.optimizer is not None:
            # megatron-core clips where the limit is above 0.
            self._engine.optimizer.config.clip_grad = max_norm if math.isfinite(max_norm) else 0.0
        return None

    def clip_grad_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Refuse: Megatron-LM does not clip by value.

        Raises:
            ConfigError: Always.
        """
        self.capabilities.refuse(Feature.CLIP_BY_VALUE, strategy=self.name)

    def parts_of_model(self, model: nn.Module) -> Any:
        """Return which parts of the model are here, as megatron-core describes it."""
        return model_state(self._checked(self._engine))

    def parts_of_optimizer(self, optimizer: torch.optim.Optimizer) -> Any:
        """Return which parts of the state are here. Communicates: all ranks, with a distributed optimizer."""
        return optimizer_state(self._checked(self._engine))

    def model_tensors(
        self, model: nn.Module, *, to_fill: bool = False, as_computed: bool = False
    ) -> dict[str, Any]:
        """Refuse: the layers are not those of the user's model.

        Raises:
            ConfigError: Always.
        """
        self._refuse_state()

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Refuse: the layers are not those of the user's model."""
        self._refuse_state()

    def optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Refuse: the parameters are not those of the user's model."""
        self._refuse_state()

    def release(self) -> None:
        """Forget the model, so that another can be prepared."""
        self._engine = self._source = None
        self._optimizers.clear()

    def _checked(self, model: nn.Module | None) -> MegatronEngine:
        if not isinstance(model, MegatronEngine):
            raise StateError(f"No model was prepared for Megatron-LM. {_ADVICE} when it is.")
        return model

    def _refuse_state(self) -> NoReturn:
        self.capabilities.refuse(Feature.SAVE_MODEL, strategy=self.name)


def _refuse_weights() -> NoReturn:
    raise ConfigError(
        "`num_items` is not possible with Megatron-LM, whose loss function alone weighs micro-batches. Set "
        "`calculate_per_token_loss` of the MegatronLMPlugin."
    )
