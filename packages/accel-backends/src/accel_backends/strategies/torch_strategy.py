"""The base class of the strategies that train with the optimizers of torch."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from accel_backends.handlers.ddp import DistributedDataParallelKwargs
from accel_backends.optimizer import AcceleratedOptimizer, in_memory
from accel_backends.scheduler import AcceleratedScheduler
from accel_backends.sharding.parameter_names import parameters_of
from accel_backends.strategies.bundle import Bundle, Placement
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.placement import place_model
from accel_backends.strategies.protocol import Capabilities, Feature, Sync
from accel_backends.transforms.compile import check_compiler, compile_model
from accel_backends.unwrap import extract_model_from_parallel
from accel_state.enums import DDPCommunicationHookType
from accel_state.errors import ConfigError

_NOTHING = nullcontext()


class TorchStrategy:
    """Places, converts and compiles models; a subclass wraps them for parallel work.

    The state of a model is treated as replicated on every rank.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()

    context: StrategyContext

    @property
    def checkpoint_format(self) -> str:
        """The format of models and optimizers in checkpoints: `full`, since every rank has a replica."""
        return "full"

    @property
    def has_gradients_in_parameters(self) -> bool:
        """Whether gradients are in `Parameter.grad`."""
        return True

    def setup(self, context: StrategyContext) -> None:
        """Set up the strategy for a run.

        Raises:
            ConfigError: If the precision replaces layers, or a communication hook is set, and this strategy does not
                support it; or if the compiler does not support the device.
        """
        if context.precision.has_own_layers and not self.capabilities.takes_exchanged_layers:
            raise ConfigError(
                f"`mixed_precision={context.precision.name}` exchanges layers of the model, which the strategy "
                f"`{self.name}` cannot work with. Use `single`, `ddp` or FSDP, or `mixed_precision=bf16`."
            )
        if context.dynamo is not None:
            check_compiler(context.dynamo, context.runtime.device_backend.vendor)
        ddp = context.handlers.of(DistributedDataParallelKwargs)
        if ddp is not None and context.topology.world_size > 1:
            if ddp.comm_hook != DDPCommunicationHookType.NO:
                self.capabilities.check(Feature.COMMUNICATION_HOOK, strategy=self.name)
        self.context = context
        # For schedulers that are prepared later. Weak: the user's references keep optimizers alive.
        self._optimizers: weakref.WeakSet[AcceleratedOptimizer] = weakref.WeakSet()

    def prepare(
        self, bundle: Bundle, *, device_placement: Placement | None = None, evaluation_mode: bool = False
    ) -> Bundle:
        """Return the prepared objects in the same order."""
        chosen = device_placement or Placement()
        models = [
            self.prepare_model(model, device_placement=place, evaluation_mode=evaluation_mode)
            for model, place in self._placed(bundle.models, chosen.models)
        ]
        optimizers: list[torch.optim.Optimizer] = [
            self.prepare_optimizer(optimizer, device_placement=place)
            for optimizer, place in self._placed(bundle.optimizers, chosen.optimizers)
        ]
        schedulers = [
            self.prepare_scheduler(scheduler, optimizers=optimizers) for scheduler in bundle.schedulers
        ]
        loaders = [
            self.prepare_loader(loader, device_placement=place)
            for loader, place in self._placed(bundle.loaders, chosen.loaders)
        ]
        return Bundle(models=models, optimizers=optimizers, schedulers=schedulers, loaders=loaders)

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Place, convert, compile and wrap one model, in this order."""
        if self._choice(device_placement):
            model = place_model(model, self.context.runtime.device)
        model = self.context.precision.convert(model)
        if self.context.dynamo is not None:
            model = compile_model(model, self.context.dynamo)
        return model if evaluation_mode else self._parallelise(model)

    def _parallelise(self, model: nn.Module) -> nn.Module:
        return model

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Wrap ``optimizer``; a prepared one is returned as it is."""
        if not isinstance(optimizer, AcceleratedOptimizer):
            optimizer = AcceleratedOptimizer(
                optimizer,
                device_placement=self._choice(device_placement),
                scaler=self.context.precision.scaler,
            )
        self._optimizers.add(optimizer)
        return optimizer

    def prepare_scheduler(
        self, scheduler: Any, *, optimizers: Sequence[torch.optim.Optimizer] = ()
    ) -> AcceleratedScheduler:
        """Wrap ``scheduler`` to follow its optimizer, or all of ``optimizers`` if that is unknown."""
        if isinstance(scheduler, AcceleratedScheduler):
            return scheduler
        optimizer = getattr(scheduler, "optimizer", None)
        known = [prepared for prepared in self._optimizers if self._is_made_from(prepared, optimizer)]
        settings = self.context.scheduling
        return AcceleratedScheduler(
            scheduler,
            known or list(optimizers),
            step_with_optimizer=settings.step_with_optimizer,
            split_batches=settings.split_batches,
            scheduler_unit=settings.unit,
            num_replicas=self.context.layout.num_data_ranks,
        )

    def _is_made_from(self, prepared: AcceleratedOptimizer, optimizer: Any) -> bool:
        return optimizer is prepared or optimizer is prepared.optimizer

    def prepare_loader(self, loader: Any, *, device_placement: bool | None = None) -> Any:
        """Prepare ``loader`` by the run's ``make_loader``; without one, return it as it is."""
        if self.context.make_loader is None:
            return loader
        return self.context.make_loader(loader, device_placement=self._choice(device_placement))

    def share_sequences(self, loader: Any) -> Any:
        """Return ``loader`` as it is: sequences are not sharded."""
        return loader

    def share_buffers(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], *, no_restore: Set[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """Return a context that does nothing: sequences are not sharded."""
        return _NOTHING

    def unwrap(
        self,
        model: nn.Module,
        *,
        keep_fp32_wrapper: bool = True,
        keep_torch_compile: bool = True,
        recursive: bool = False,
    ) -> nn.Module:
        """Return the user's model without the wrappers of `prepare_model`."""
        return extract_model_from_parallel(
            model,
            keep_fp32_wrapper=keep_fp32_wrapper,
            keep_torch_compile=keep_torch_compile,
            recursive=recursive,
        )

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Compute gradients of ``loss / num_steps``, scaled under fp16; ``kwargs`` go to `torch.Tensor.backward`."""
        if num_steps != 1:
            loss = loss / num_steps
        self.context.precision.scale(loss).backward(**kwargs)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def scale_gradients(self, models: Iterable[nn.Module], factor: float) -> None:
        """Multiply the gradients of ``models``, in place."""
        parameters = [parameter for model in models for parameter in model.parameters()]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # `_foreach` functions do not take `DTensor`s and plain tensors in one list.
        gradients = [one.to_local() if hasattr(one, "to_local") else one for one in gradients]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context that does nothing: there is nothing to reduce."""
        return _NOTHING

    def replaced_parameters(self) -> Iterable[torch.Tensor]:
        """Return no parameters: models keep theirs."""
        return ()

    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor | None:
        """Clip the total norm of the gradients and return the norm before."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Clamp all gradients to ``[-clip_value, clip_value]``."""
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the state dict of ``model``, replicated on every rank."""
        return model.state_dict()

    def local_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the state dict of ``model`` on this rank."""
        return model.state_dict()

    def state_to_fill(self, model: nn.Module) -> dict[str, Any]:
        """Return the state dict on this rank."""
        return self.local_model_state(model)

    def exported_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the state dict of ``model`` on this rank."""
        return self.local_model_state(model)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a full state dict into ``model`` on every rank."""
        return model.load_state_dict(state, strict=strict)

    def bare_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the user's optimizer inside a prepared one."""
        inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        return inner

    def optimizer_class(self, optimizer: torch.optim.Optimizer) -> type:
        """Return the class of the user's optimizer."""
        return type(self.bare_optimizer(optimizer))

    def local_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state dict of ``optimizer`` on this rank."""
        return optimizer.state_dict()

    def optimizer_parameters(
        self, optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]
    ) -> dict[str, torch.Tensor]:
        """Return the parameters of ``optimizer`` by their names in ``models``."""
        return parameters_of(optimizer, models)

    def optimizer_shapes(self, optimizer: torch.optim.Optimizer) -> list[list[torch.Size]]:
        """Return the shapes of the parameters of ``optimizer``, by group."""
        return [[parameter.shape for parameter in group["params"]] for group in optimizer.param_groups]

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load a full state dict into ``optimizer`` on every rank."""
        optimizer.load_state_dict(in_memory(optimizer, state))

    def release(self) -> None:
        """Do nothing: models belong to the user."""

    def join_uneven_inputs(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a context that does nothing, for a single process.

        Raises:
            ConfigError: With several processes, if the strategy does not support it.
        """
        if self.context.topology.world_size > 1:
            self.capabilities.check(Feature.JOIN, strategy=self.name)
        return _NOTHING

    def _choice(self, device_placement: bool | None) -> bool:
        return self.context.device_placement if device_placement is None else device_placement

    def _placed(self, objects: Sequence[Any], chosen: Sequence[bool]) -> Iterable[tuple[Any, bool | None]]:
        if not chosen:
            return [(item, None) for item in objects]
        return zip(objects, chosen, strict=True)
