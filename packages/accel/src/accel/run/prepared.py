"""Prepare models, optimizers, schedulers and loaders for a run, and keep track of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, overload
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

import accel_data
import accel_ops
from accel.run import rank_settings
from accel.run.configuration import RunConfiguration
from accel_backends import AcceleratedOptimizer, AcceleratedScheduler, Strategy
from accel_backends.stepping.stepper import Stepper
from accel_backends.strategies.bundle import BundleBuilder
from accel_backends.strategies.checks import (
    check_library_mesh,
    check_parameters,
    check_placement,
    has_library_mesh,
)
from accel_state import PartialState
from accel_state.errors import ConfigError
from accel_state.runtime import current_runtime


class PreparedLoaders(Sequence[DataLoader[Any]]):
    """Weak references to the prepared loaders, in the order in which they were prepared, each once.

    A run that prepares a loader for each epoch keeps only the current one. A loader keeps its number when others are
    garbage-collected.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[DataLoader[Any]]] = {}
        self._num_added = 0

    def add(self, loader: DataLoader[Any]) -> None:
        """Add a loader, once."""
        if not any(loader is one for one in self):
            self._references[self._num_added] = weakref.ref(loader)
            self._num_added += 1
            loader._is_accelerate_prepared = True  # read by libraries

    def extend(self, loaders: Iterable[DataLoader[Any]]) -> None:
        """Add several loaders."""
        for loader in loaders:
            self.add(loader)

    def clear(self) -> None:
        """Remove all."""
        self._references.clear()
        self._num_added = 0

    def by_number(self) -> dict[int, DataLoader[Any]]:
        """Return the loaders by their number, which is the number of loaders prepared before them."""
        alive = {n: loader for n, one in self._references.items() if (loader := one()) is not None}
        self._references = {number: self._references[number] for number in alive}
        return alive

    def __len__(self) -> int:
        return len(self.by_number())

    @overload
    def __getitem__(self, index: int) -> DataLoader[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[DataLoader[Any]]: ...
    def __getitem__(self, index: int | slice) -> DataLoader[Any] | list[DataLoader[Any]]:
        return list(self.by_number().values())[index]

    def __iter__(self) -> Any:
        return iter(self.by_number().values())


class PreparedObjects:
    """The prepared models, optimizers, schedulers and loaders, each once, in the order of preparation.

    Args:
        strategy: Unwraps prepared models.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[AcceleratedOptimizer] = []
        self.schedulers: list[AcceleratedScheduler] = []
        self.loaders = PreparedLoaders()
        self._evaluation_only: WeakSet[nn.Module] = WeakSet()
        self._strategy = strategy

    @property
    def trained_models(self) -> list[nn.Module]:
        """The models that were prepared for training, not for evaluation only."""
        return [model for model in self.models if model not in self._evaluation_only]

    def find(self, thing: object) -> Any | None:
        """Return the prepared object for `thing`, or `thing` if it is one; None if it was not prepared."""
        if isinstance(thing, nn.Module):
            return self.find_model(thing)
        for attribute, things in (("optimizer", self.optimizers), ("scheduler", self.schedulers)):
            for ready in things:
                if ready is thing or getattr(ready, attribute, None) is thing:
                    return ready
        return next((loader for loader in self.loaders if loader is thing), None)

    def find_model(self, model: nn.Module) -> nn.Module | None:
        """Return the model that was prepared from `model` for training, `model` if it is one, else None."""
        unwrap = self._strategy.unwrap
        for ready in self.trained_models:
            inner = unwrap(ready), unwrap(ready, keep_torch_compile=False)
            if any(model is one for one in (ready, *inner)):
                return ready
        return None

    def add_models(self, models: Iterable[nn.Module], *, evaluation_only: bool = False) -> None:
        """Add models; the latest call decides whether they are for evaluation only."""
        for model in models:
            _add(self.models, model)
            (self._evaluation_only.add if evaluation_only else self._evaluation_only.discard)(model)

    def add_optimizers(self, optimizers: Iterable[Any]) -> None:
        """Add optimizers."""
        for optimizer in optimizers:
            _add(self.optimizers, optimizer)

    def add_schedulers(self, schedulers: Iterable[Any]) -> None:
        """Add schedulers."""
        for scheduler in schedulers:
            _add(self.schedulers, scheduler)

    def clear(self) -> None:
        """Remove all of them."""
        self.models.clear()
        self.optimizers.clear()
        self.schedulers.clear()
        self.loaders.clear()


def _add(things: list[Any], new: Any) -> None:
    new._is_accelerate_prepared = True  # read by libraries
    if not any(new is old for old in things):
        things.append(new)


def _is_trainable(model: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


class Preparer:
    """Checks and prepares the user's objects, and adds them to the prepared ones.

    Args:
        configuration: The configuration of the run.
        processes: The processes of the run.
        strategy: Prepares models, optimizers and schedulers.
        prepared: The prepared objects.
        stepper: The state of the accumulation.
    """

    def __init__(
        self,
        configuration: RunConfiguration,
        *,
        processes: PartialState,
        strategy: Strategy,
        prepared: PreparedObjects,
        stepper: Stepper,
    ) -> None:
        self._configuration = configuration
        self._processes = processes
        self._strategy = strategy
        self._prepared = prepared
        self._stepper = stepper

    def prepare(self, objects: Sequence[Any], device_placement: Sequence[bool] | None) -> Any:
        """Return the prepared objects, a single one without a tuple; see `Accelerator.prepare`."""
        if device_placement is not None and len(device_placement) != len(objects):
            raise ConfigError(
                f"`device_placement` has {len(device_placement)} entries for {len(objects)} objects. "
                "Give one per object, or leave it out."
            )
        places = device_placement or [self._configuration.device_placement] * len(objects)
        builder = BundleBuilder(objects, places, find_prepared=self._prepared.find)
        self._check(builder.bundle.models, builder.bundle.optimizers)
        if self._processes.use_distributed and any(map(_is_trainable, builder.bundle.models)):
            # The ranks communicate anyway, to replicate or shard the model.
            current_runtime().await_arrival("prepare")
            rank_settings.prepare(
                builder.bundle, self._configuration.loader, num_steps=self._stepper.num_steps
            )
        ready = self._strategy.prepare(builder.bundle, device_placement=builder.placement)
        is_trained = bool(ready.optimizers) or not self._strategy.capabilities.needs_optimizer
        self._prepared.add_models(ready.models, evaluation_only=not is_trained)
        self._prepared.add_optimizers(ready.optimizers)
        self._prepared.add_schedulers(ready.schedulers)
        results = builder.results(ready)
        return results[0] if len(results) == 1 else results

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None, *, evaluation_mode: bool
    ) -> nn.Module:
        """Return the prepared model; see `Accelerator.prepare_model`."""
        if not evaluation_mode:
            earlier = self._prepared.find_model(model)
            if earlier is not None:
                return earlier
            self._check([model], [])
        ready = self._strategy.prepare_model(
            model, device_placement=self._place(device_placement), evaluation_mode=evaluation_mode
        )
        is_trained = not evaluation_mode and not self._strategy.capabilities.needs_optimizer
        self._prepared.add_models([ready], evaluation_only=not is_trained)
        return ready

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None) -> Optimizer:
        """Return the prepared optimizer; see `Accelerator.prepare_optimizer`."""
        earlier: Optimizer | None = self._prepared.find(optimizer)
        if earlier is not None:
            return earlier
        self._check([], [optimizer])
        ready = self._strategy.prepare_optimizer(optimizer, device_placement=self._place(device_placement))
        self._prepared.add_optimizers([ready])
        return ready

    def prepare_scheduler(self, scheduler: LRScheduler) -> Any:
        """Return the prepared scheduler; see `Accelerator.prepare_scheduler`."""
        earlier = self._prepared.find(scheduler)
        if earlier is not None:
            return earlier
        ready = self._strategy.prepare_scheduler(scheduler, optimizers=self._prepared.optimizers)
        self._prepared.add_schedulers([ready])
        return ready

    def prepare_data_loader(
        self,
        loader: DataLoader[Any],
        device_placement: bool | None,
        slice_fn_for_dispatch: Callable[..., Any] | None,
    ) -> DataLoader[Any]:
        """Return the prepared loader; see `Accelerator.prepare_data_loader`."""
        settings, is_placed = self._configuration.loader, self._place(device_placement)
        if settings.dispatch_batches and not is_placed:
            raise ConfigError(
                "`dispatch_batches=True` needs `device_placement=True`: batches are sent from device to device. Leave "
                "one of them out."
            )
        ready: accel_data.PreparedLoader = accel_data.prepare_data_loader(
            loader,
            device=self._processes.device,
            split_batches=settings.split_batches,
            put_on_device=is_placed,
            rng_types=list(self._configuration.rng_types),
            dispatch_batches=settings.dispatch_batches if is_placed else False,
            even_batches=settings.even_batches,
            slice_fn_for_dispatch=slice_fn_for_dispatch,
            use_seedable_sampler=settings.use_seedable_sampler,
            data_seed=settings.data_seed,
            non_blocking=settings.non_blocking,
            use_stateful_dataloader=settings.use_stateful_dataloader,
            keeps_dataset_state=settings.use_stateful_dataloader,
        )
        self._prepared.loaders.add(ready)
        return ready

    @contextmanager
    def join_uneven_inputs(self, joinables: Sequence[nn.Module], even_batches: bool | None) -> Iterator[None]:
        """Train on a different number of batches per rank in the block; see `Accelerator.join_uneven_inputs`."""
        with ExitStack() as stack:
            if even_batches is not None and self._processes.use_distributed:
                for loader in self._prepared.loaders:
                    stack.enter_context(accel_data.override_even_batches(loader, even_batches))
            stack.enter_context(self._stepper.over_uneven_inputs())
            stack.enter_context(self._strategy.join_uneven_inputs(joinables))
            yield

    def free_memory(self, objects: Sequence[Any]) -> Any:
        """Release everything prepared, and return a None for each of `objects`; see `Accelerator.free_memory`."""
        self._prepared.clear()
        self._strategy.release()
        self._stepper.reset()
        return accel_ops.release_memory(*objects)

    def _check(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        num_processes = self._processes.num_processes
        for model in models:
            check_placement(
                model,
                num_processes=num_processes,
                is_bypassed=self._configuration.is_device_map_allowed,
            )
            check_library_mesh(
                model,
                current_runtime().layout,
                strategy=self._strategy.name,
                shards_parameters=self._strategy.capabilities.shards_parameters,
            )
        if optimizers:
            # The Trainer of transformers prepares a model that a library has sharded for evaluation only.
            sharded = [model for model in self._prepared.models if has_library_mesh(model)]
            trained = [*models, *self._prepared.trained_models, *sharded]
            # A model may override `parameters()`, but the gradients of all parameters are reduced.
            known: list[torch.Tensor] = [one for model in trained for one in nn.Module.parameters(model)]
            known += self._strategy.replaced_parameters()
        for optimizer in optimizers:
            check_parameters(optimizer, known, num_processes=num_processes)

    def _place(self, device_placement: bool | None) -> bool:
        return self._configuration.device_placement if device_placement is None else device_placement
