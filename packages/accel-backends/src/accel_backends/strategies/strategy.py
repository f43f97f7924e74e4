"""How models are placed, wrapped, synchronized and stepped: the base class of all strategies."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from accel_backends.handlers.ddp import DistributedDataParallelKwargs
from accel_backends.optimizer import AcceleratedOptimizer, in_memory
from accel_backends.scheduler import AcceleratedScheduler
from accel_backends.strategies.bundle import Bundle, Placement
from accel_backends.strategies.capabilities import Capabilities, Feature, OpenGradients, Sync
from accel_backends.strategies.checks import place_model
from accel_backends.strategies.context import StrategyContext
from accel_backends.unwrap import extract_model_from_parallel
from accel_ops.named_tensors import named_tensors
from accel_state.enums import DDPCommunicationHookType
from accel_state.errors import ConfigError

_NOTHING = nullcontext()


class SequenceShards(Protocol):
    """The ability of strategies whose ranks share sequences."""

    def wrap_loader(self, loader: Any) -> Any:
        """Return a loader of this rank's shard of each sequence; ``loader`` if it is one already."""

    def shard_buffers(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], *, no_restore: Set[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """Return a context in which ``buffers`` are this rank's shards of them.

        Args:
            buffers: Tensors of full sequences, changed in place.
            dims: Dimension of the tokens in each.
            no_restore: Those that need not be restored after the block.
        """


class Strategy:
    """How models are placed, wrapped, synchronized and stepped; a subclass overrides what its engine does differently.

    A member is constructed without arguments, set up once, and then used for all objects of the run. Methods
    that communicate say so; every rank must call those, in the same order. Methods for states
    take the user's model, as ``unwrap(model, keep_torch_compile=False)`` returns it, and the user's optimizer, as
    `accel_backends.unwrap.stepped_optimizer` does. An optional ability is an attribute: None, or an object.

    This class places, converts and compiles models, and treats their states as replicated on every rank.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()

    context: StrategyContext
    sequences: SequenceShards | None = None
    """How loaders and buffers are sharded if ranks share sequences; None if they do not."""
    open_gradients: OpenGradients | None = OpenGradients()
    """The gradients of an unfinished accumulation; None if a checkpoint cannot hold them."""
    replaced: Iterable[torch.Tensor] = ()
    """Parameters that `prepare_model` replaced in models, and that optimizers may still have."""

    @property
    def checkpoint_format(self) -> str:
        """Name of the `CheckpointFormat` in which models and optimizers are saved."""
        return "full"

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run.

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
            from accel_backends.compile import check_compiler

            check_compiler(context.dynamo, context.runtime.device_backend.vendor)
        ddp = context.handlers.get(DistributedDataParallelKwargs)
        if ddp is not None and context.topology.world_size > 1:
            if ddp.comm_hook != DDPCommunicationHookType.NO:
                self.capabilities.check(Feature.COMMUNICATION_HOOK, strategy=self.name)
        self.context = context
        # For schedulers that are prepared later. Weak: the user's references keep optimizers alive.
        self._optimizers: weakref.WeakSet[AcceleratedOptimizer] = weakref.WeakSet()

    def prepare(
        self, bundle: Bundle, *, device_placement: Placement | None = None, evaluation_mode: bool = False
    ) -> Bundle:
        """Return the prepared objects in the same order. Every rank must call it; it may communicate.

        Loaders are returned as they are; see `prepare_loader`.
        """
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
        return Bundle(models, optimizers, schedulers, bundle.loaders)

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Place, convert, compile and wrap one model, in this order; not wrapped in ``evaluation_mode``."""
        if self._choice(device_placement):
            model = place_model(model, self.context.runtime.device)
        model = self.context.precision.convert(model)
        if self.context.dynamo is not None:
            from accel_backends.compile import compile_model

            compile_model(model, self.context.dynamo)
        return model if evaluation_mode else self._parallelise(model)

    def _parallelise(self, model: nn.Module) -> nn.Module:
        return model

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Return the optimizer that the user will hold; a prepared one is returned as it is."""
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
        """Return the scheduler that the user will hold: it follows its optimizer, or ``optimizers`` if that is unknown.

        ``optimizers`` are those prepared with it.
        """
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

    def prepare_loader(
        self, loader: Any, prepare: Callable[[Any], Any], *, models: Sequence[nn.Module] = ()
    ) -> Any:
        """Return the loader that the user will hold: that of ``prepare``, wrapped as the engine needs it.

        Args:
            loader: The user's loader.
            prepare: Shards a loader over the data ranks.
            models: Those that were prepared in the same call.
        """
        return prepare(loader)

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
        """Compute gradients of ``loss / num_steps``, scaled by the precision; reduce them unless that is deferred.

        ``kwargs`` go to `torch.Tensor.backward`.
        """
        if num_steps != 1:
            loss = loss / num_steps
        self.context.precision.scale(loss).backward(**kwargs)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    @torch.no_grad()
    def evaluate(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: Callable[[nn.Module, Any], tuple[torch.Tensor, Any]],
        *,
        num_items: Callable[[Any], float | torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, Any]:
        """Return the loss and the outputs of a batch, as ``loss_fn`` does, without gradients. All ranks together."""
        return loss_fn(model, batch)

    def scale_gradients(self, models: Iterable[nn.Module], factor: float | torch.Tensor) -> None:
        """Multiply the complete gradients of ``models``, in place."""
        parameters = [parameter for model in models for parameter in model.parameters()]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # `_foreach` functions do not take `DTensor`s and plain tensors in one list.
        gradients = [one.to_local() if hasattr(one, "to_local") else one for one in gradients]
        for device, dtype in {(one.device, one.dtype) for one in gradients}:
            number = factor
            if isinstance(factor, torch.Tensor):
                # On the device, kernels round it to the gradients' dtype, which is too coarse in half precision; the
                # host waits for the device then.
                number = factor.to(device, dtype) if dtype.itemsize >= 4 else factor.item()
            of_kind = [one for one in gradients if (one.device, one.dtype) == (device, dtype)]
            torch._foreach_mul_(of_kind, number)

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context for forward and backward in which gradients are reduced as ``sync`` specifies."""
        return _NOTHING

    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor | None:
        """Clip the total norm of all (unscaled) gradients and return the norm before."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Clamp each (unscaled) gradient to ``[-clip_value, clip_value]``."""
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def model_tensors(
        self, model: nn.Module, *, to_fill: bool = False, as_computed: bool = False
    ) -> dict[str, Any]:
        """Return the state of ``model`` on this rank: a `DTensor` for each sharded tensor.

        The tensors share the model's memory if possible.

        Args:
            model: The user's model.
            to_fill: Return the destination of a checkpoint: a tensor that this rank must not read, or that gets its
                memory from `load_model_state`, is deferred.
            as_computed: Return tensors in the dtypes that the model computes in, for other readers.
        """
        return model.state_dict()

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a full state, or one from `model_tensors`.

        Returns missing and unexpected keys as `torch.nn.Module.load_state_dict` does.
        """
        return model.load_state_dict(state, strict=strict)

    def optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of ``optimizer`` on this rank: a `DTensor` for each sharded tensor.

        Parameters have numbers, in the order of `optimizer_parameters`.
        """
        return optimizer.state_dict()

    def optimizer_parameters(
        self, optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]
    ) -> list[dict[str | int, Any]]:
        """Return the parameters of ``optimizer`` by group, in the order of its full state, sharded like their states.

        Keys are their names in ``models``, after the number of the model if they belong to several; of a parameter
        that is in none of them, its number in the optimizer.
        """
        homes: dict[int, tuple[int, str]] = {}
        for index, model in enumerate(models):
            for found in named_tensors(model, include_buffers=False):
                homes.setdefault(id(found.tensor), (index, found.names[0]))
        groups = [group["params"] for group in optimizer.param_groups]
        indexes = {homes[id(one)][0] for group in groups for one in group if id(one) in homes}
        names = {
            number: name if len(indexes) == 1 else f"{index}.{name}"
            for number, (index, name) in homes.items()
        }
        numbers = itertools.count()
        return [
            {names.get(id(one), number): one for one, number in zip(group, numbers, strict=False)}
            for group in groups
        ]

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load a full state, or one with tensors sharded like the parameters, which may be mapped from files."""
        optimizer.load_state_dict(in_memory(optimizer, state))

    def release(self) -> None:
        """Drop the references to everything prepared."""

    def join_uneven_inputs(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a context in which ranks may run out of batches at different times.

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


def full_model_state(strategy: Strategy, model: nn.Module) -> dict[str, Any]:
    """Return the full state of a model, prepared or the user's, with the keys it had before it was prepared.

    If parameters are sharded, all ranks must call it: rank 0 gets full tensors on the CPU, the others an empty dict.
    """
    inner = strategy.unwrap(model, keep_torch_compile=False)
    state = strategy.model_tensors(inner, as_computed=True)
    if not strategy.capabilities.shards_parameters:
        return state
    from accel_backends.fsdp.state import gathered_state  # imports `DTensor`, which takes long

    return gathered_state(state, is_receiver=strategy.context.topology.rank == 0)
