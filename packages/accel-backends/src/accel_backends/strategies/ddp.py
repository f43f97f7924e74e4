"""Distributed data parallelism: every rank holds the whole model and gradients are averaged in backward."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel

from accel_backends.handlers.ddp import DistributedDataParallelKwargs
from accel_backends.optimizer import AcceleratedOptimizer
from accel_backends.strategies.capabilities import Capabilities, Sync
from accel_backends.strategies.checks import model_devices
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.ddp_averaging import AveragingCheck, TrackedDDP
from accel_backends.strategies.ddp_parameters import Reducers
from accel_backends.strategies.strategy import Strategy
from accel_backends.unwrap import layers
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user

_NOTHING = nullcontext()


class DDPStrategy(Strategy):
    """The strategy `ddp`, on any device that torch has a process group for."""

    name: ClassVar[str] = "ddp"
    capabilities: ClassVar[Capabilities] = Capabilities(accumulation=Sync.LATER, takes_exchanged_layers=True)

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run.

        Raises:
            ConfigError: If several processes have no process group to average gradients over.
        """
        if context.topology.world_size > 1 and not dist.is_initialized():
            raise ConfigError(
                f"The strategy `{self.name}` needs a process group, and this process has none. "
                "Start the script with `accel launch` or torchrun."
            )
        super().setup(context)
        self._reducers = Reducers()

    def _wrapping(self) -> DistributedDataParallelKwargs:
        """Return the DDP settings at present; a script may replace them."""
        return self.context.handlers.get(DistributedDataParallelKwargs) or DistributedDataParallelKwargs()

    def _parallelise(self, model: nn.Module) -> nn.Module:
        """Wrap ``model`` if others train it, too, unless it is wrapped or frozen. All ranks together."""
        if not dist.is_initialized() or ddp_of(model) is not None:
            return model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        for name, parameter in model.named_parameters():
            if parameter.is_meta:
                raise ConfigError(
                    f"`{name}` of the {type(model).__name__} is on the meta device, where it has no values, and DDP "
                    "trains whole models. Load its weights without offloading them, or shard the model: "
                    "`FullyShardedDataParallelPlugin(cpu_offload=True)`."
                )
        handler = self._wrapping()
        wrapped = TrackedDDP(model, device_ids=_device_ids(model), **handler.to_kwargs())
        handler.register_comm_hook(wrapped)
        release_at_exit(wrapped)
        self._reducers.add(wrapped)
        return wrapped

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Wrap ``optimizer``; it warns if it steps gradients that were not averaged."""
        prepared = super().prepare_optimizer(optimizer, device_placement=device_placement)
        prepared.check_before_step(
            AveragingCheck(self._reducers, update=partial(self._reducers.update, before_step=True))
        )
        return prepared

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Compute and average gradients as the base class does; parameters may be other ones than before."""
        super().backward(loss, num_steps=num_steps, **kwargs)
        self._reducers.update()

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context in which gradients of ``model`` are reduced, or accumulate locally."""
        if sync is not Sync.LATER:
            return _NOTHING
        ddp = ddp_of(model)
        return _NOTHING if ddp is None else ddp.no_sync()

    def join_uneven_inputs(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a context in which ranks may run out of batches at different times.

        A rank that is done answers the collectives of the others until all are done. Communicates: all ranks.
        """
        joinables = [ddp_of(model) or model for model in models]
        known = [one for one in joinables if isinstance(one, Joinable)]
        if len(known) < len(joinables):
            warn_user(
                "`join_uneven_inputs` is only supported for multi-GPU and multi-CPU training of models that DDP wraps: "
                "it has no effect on the others. Give it the prepared models.",
                main_process_only=False,
            )
        return Join(known, enable=True, throw_on_early_termination=False) if known else _NOTHING


def trigger_sync_in_backward(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context for a backward that reduces gradients although its forward ran under `no_sync`.

    Does nothing for a model that is not wrapped in `DistributedDataParallel`.
    """
    ddp = ddp_of(model)
    return _NOTHING if ddp is None else _synchronised_backward(ddp)


def ddp_of(model: Any) -> DistributedDataParallel | None:
    """Return the `DistributedDataParallel` among the wrappers around a model, None if there is none."""
    if isinstance(model, DistributedDataParallel):
        return model
    if not isinstance(model, nn.Module):
        return None
    return next((layer for layer in layers(model) if isinstance(layer, DistributedDataParallel)), None)


def _device_ids(model: nn.Module) -> list[torch.device] | None:
    """Return what DDP moves inputs to: the model's device if it has a number, None for the CPU or several."""
    devices = model_devices(model)
    return (
        list(devices) if len(devices) == 1 and all(device.index is not None for device in devices) else None
    )


@contextmanager
def _synchronised_backward(ddp: DistributedDataParallel) -> Iterator[None]:
    was_required = ddp.require_backward_grad_sync, ddp.require_forward_param_sync
    ddp.require_backward_grad_sync = ddp.require_forward_param_sync = True
    # What DDP's forward does when it is not under no_sync. Parameters that backward does not reach are not
    # searched for, since the outputs are gone: with find_unused_parameters backward must reach all.
    ddp.reducer.prepare_for_backward([])
    if isinstance(ddp, TrackedDDP):
        ddp.track.begin()
    try:
        yield
    finally:
        ddp.require_backward_grad_sync, ddp.require_forward_param_sync = was_required


class _Wrapped:
    """The models that were wrapped, and in which process; a forked child has no threads to end."""

    models: ClassVar[weakref.WeakSet[DistributedDataParallel]] = weakref.WeakSet()
    pid: int | None = None


def release_at_exit(model: DistributedDataParallel) -> None:
    """Make ``model`` release its process group when the interpreter ends, if it is still alive then.

    Otherwise the group outlives ``destroy_process_group``, and its threads the interpreter: a gloo thread
    that lets go of a gradient at that moment ends the process with ``terminate called without an active
    exception`` (torch 2.13, one run in twelve on a busy machine).
    """
    if _Wrapped.pid != os.getpid():
        _Wrapped.pid = os.getpid()
        _Wrapped.models = weakref.WeakSet()
        # Before what ends the group, which was registered when the group was set up.
        atexit.register(release_all)
    _Wrapped.models.add(model)


def release_all() -> None:
    """Remove reducer, logger and group from all wrapped models; they cannot be trained afterwards."""
    if _Wrapped.pid != os.getpid():
        return
    for model in list(_Wrapped.models):
        # Last of all the Python object of the group, which waits for the threads without the interpreter lock.
        group = model.__dict__.pop("process_group", None)
        for name in ("reducer", "logger"):
            model.__dict__.pop(name, None)
        del group
