"""Prepare models, optimizers, schedulers and loaders for a run, and keep track of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

import accel_data
from accel import rank_settings
from accel.configuration import RunConfiguration
from accel_backends import AcceleratedOptimizer, AcceleratedScheduler, Strategy
from accel_backends.strategies.bundle import KINDS, Bundle, InTurn, Placement
from accel_backends.strategies.checks import (
    check_library_mesh,
    check_parameters,
    check_placement,
    has_library_mesh,
)
from accel_data import DataLoaderConfiguration, PreparedLoader
from accel_state import imports_report
from accel_state.errors import ConfigError
from accel_state.gradient_state import GradientState
from accel_state.runtime import current_runtime

# What a script that starts again needs for its `load_state`.
_IMPORTED_SOON = (
    "accel.checkpoints.loading",
    "accel_checkpoint.saving.saver",
    "accel_backends.checkpoint_formats.full",
)


class Prepared:
    """The prepared models, optimizers, schedulers and loaders, each once, in the order of preparation.

    Loaders are referenced weakly, so that a run that prepares one for each epoch keeps only the current one.

    Args:
        configuration: The configuration of the run.
        strategy: Prepares models, optimizers and schedulers.
        gradient_state: The accumulation, which must agree on all ranks.
        make_loader: Prepares a loader, as `prepare_data_loader` does, which a subclass of `Accelerator` may override.
    """

    def __init__(
        self,
        configuration: RunConfiguration,
        *,
        strategy: Strategy,
        gradient_state: GradientState,
        make_loader: Callable[..., PreparedLoader],
    ) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[AcceleratedOptimizer] = []
        self.schedulers: list[AcceleratedScheduler] = []
        self.loaders: WeakValueDictionary[int, DataLoader[Any]] = WeakValueDictionary()
        """The loaders by their number, which stays the same when others are garbage-collected."""
        self._num_loaders = 0
        self._evaluation_only: WeakSet[nn.Module] = WeakSet()
        self._configuration = configuration
        self._strategy = strategy
        self._gradient_state = gradient_state
        self._make_loader = make_loader

    def set_loaders(self, loaders: Iterable[DataLoader[Any]]) -> None:
        """Replace the loaders."""
        kept = list(loaders)
        self.loaders.clear()
        self._num_loaders = 0
        for loader in kept:
            self._add_loader(loader)

    def clear(self) -> None:
        """Release everything that was prepared."""
        self.models.clear()
        self.optimizers.clear()
        self.schedulers.clear()
        self.set_loaders(())
        self._strategy.release()

    def prepare(self, objects: Sequence[Any], device_placement: Sequence[bool] | None) -> Any:
        """Return the prepared objects, a single one without a tuple; see `Accelerator.prepare`.

        Raises:
            ConfigError: If `device_placement` has another length, or the objects do not fit this run.
        """
        if device_placement is not None and len(device_placement) != len(objects):
            raise ConfigError(
                f"`device_placement` has {len(device_placement)} entries for {len(objects)} objects. "
                "Pass one per object, or omit it."
            )
        places = device_placement or [self._configuration.device_placement] * len(objects)
        given: dict[str, list[Any]] = {kind.name: [] for kind in fields(Bundle)}
        placed: dict[str, list[bool]] = {kind.name: [] for kind in fields(Bundle)}
        done: dict[int, Any] = {}  # an object that is passed twice is prepared once
        for thing, is_placed in zip(objects, places, strict=True):
            name = next((name for kind, name in KINDS if isinstance(thing, kind)), None)
            if name is not None and id(thing) not in done:
                done[id(thing)] = self._find(thing)
                if done[id(thing)] is None:
                    given[name].append(thing)
                    placed[name].append(is_placed)
        ready = self._prepare(Bundle(**given), Placement(placed["models"], placed["optimizers"]))
        ready.loaders = [
            self._strategy.prepare_loader(
                loader, partial(self._make_loader, device_placement=place), models=given["models"]
            )
            for loader, place in zip(given["loaders"], placed["loaders"], strict=True)
        ]
        for name, things in given.items():
            done.update(zip(map(id, things), getattr(ready, name), strict=True))
        if imports_report.is_due:
            imports_report.report_imports(*_IMPORTED_SOON)
        results = tuple(done.get(id(thing), thing) for thing in objects)
        results = tuple(result.take() if isinstance(result, InTurn) else result for result in results)
        return results[0] if len(results) == 1 else results

    def _prepare(self, bundle: Bundle, placement: Placement) -> Bundle:
        """Return the prepared objects, and keep track of them."""
        self._check(bundle.models, bundle.optimizers)
        runtime = current_runtime()
        parameters = (parameter for model in bundle.models for parameter in model.parameters())
        if runtime.topology.world_size > 1 and any(parameter.requires_grad for parameter in parameters):
            # The ranks communicate anyway, to replicate or shard the model.
            runtime.await_arrival("prepare")
            rank_settings.prepare(
                bundle, self._configuration.loader, num_steps=self._gradient_state.num_steps
            )
        ready = self._strategy.prepare(bundle, device_placement=placement)
        is_trained = bool(ready.optimizers) or not self._strategy.capabilities.needs_optimizer
        self._add_models(ready.models, evaluation_only=not is_trained)
        _add(self.optimizers, ready.optimizers)
        _add(self.schedulers, ready.schedulers)
        return ready

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None, *, evaluation_mode: bool
    ) -> nn.Module:
        """Return the prepared model; see `Accelerator.prepare_model`."""
        if not evaluation_mode:
            if (earlier := self._find_model(model)) is not None:
                return earlier
            self._check([model], [])
        ready = self._strategy.prepare_model(
            model, device_placement=self._place(device_placement), evaluation_mode=evaluation_mode
        )
        is_trained = not evaluation_mode and not self._strategy.capabilities.needs_optimizer
        self._add_models([ready], evaluation_only=not is_trained)
        return ready

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None) -> Any:
        """Return the prepared optimizer; see `Accelerator.prepare_optimizer`."""
        if (earlier := self._find(optimizer)) is not None:
            return earlier
        self._check([], [optimizer])
        ready = self._strategy.prepare_optimizer(optimizer, device_placement=self._place(device_placement))
        _add(self.optimizers, [ready])
        return ready

    def prepare_scheduler(self, scheduler: LRScheduler) -> Any:
        """Return the prepared scheduler; see `Accelerator.prepare_scheduler`."""
        if (earlier := self._find(scheduler)) is not None:
            return earlier
        ready = self._strategy.prepare_scheduler(scheduler, optimizers=self.optimizers)
        _add(self.schedulers, [ready])
        return ready

    def prepare_data_loader(
        self,
        loader: DataLoader[Any],
        device_placement: bool | None,
        slice_fn_for_dispatch: Callable[..., Any] | None,
    ) -> PreparedLoader:
        """Return the prepared loader; see `Accelerator.prepare_data_loader`.

        Raises:
            ConfigError: If batches are to be dispatched but not moved to the device.
        """
        settings, is_placed = self._configuration.loader, self._place(device_placement)
        if settings.dispatch_batches and not is_placed:
            raise ConfigError(
                "`dispatch_batches=True` needs `device_placement=True`: batches are sent from device to device. Leave "
                "one of them out."
            )
        options = {field.name: getattr(settings, field.name) for field in fields(DataLoaderConfiguration)}
        if not is_placed:
            options["dispatch_batches"] = False
        ready = accel_data.prepare_data_loader(
            loader,
            device=current_runtime().device,
            put_on_device=is_placed,
            rng_types=list(self._configuration.rng_types),
            slice_fn_for_dispatch=slice_fn_for_dispatch,
            keeps_dataset_state=settings.use_stateful_dataloader,
            **options,
        )
        self._add_loader(ready)
        return ready

    @contextmanager
    def join_uneven_inputs(self, joinables: Sequence[nn.Module], even_batches: bool | None) -> Iterator[None]:
        """Train on a different number of batches per rank in the block; see `Accelerator.join_uneven_inputs`."""
        with ExitStack() as stack:
            if even_batches is not None and current_runtime().topology.world_size > 1:
                for loader in self.loaders.values():
                    stack.enter_context(accel_data.override_even_batches(loader, even_batches))
            stack.enter_context(self._strategy.join_uneven_inputs(joinables))
            yield

    @property
    def _trained_models(self) -> list[nn.Module]:
        return [model for model in self.models if model not in self._evaluation_only]

    def _find(self, thing: object) -> Any | None:
        """Return the prepared object for `thing`, or `thing` if it is one; None if it was not prepared."""
        if isinstance(thing, nn.Module):
            return self._find_model(thing)
        for attribute, things in (("optimizer", self.optimizers), ("scheduler", self.schedulers)):
            for ready in things:
                if ready is thing or getattr(ready, attribute, None) is thing:
                    return ready
        return next((loader for loader in self.loaders.values() if loader is thing), None)

    def _find_model(self, model: nn.Module) -> nn.Module | None:
        """Return the model that was prepared from `model` for training, `model` if it is one, else None."""
        unwrap = self._strategy.unwrap
        for ready in self._trained_models:
            inner = unwrap(ready), unwrap(ready, keep_torch_compile=False)
            if any(model is candidate for candidate in (ready, *inner)):
                return ready
        return None

    def _add_models(self, models: Iterable[nn.Module], *, evaluation_only: bool) -> None:
        """Add models; the latest call decides whether they are for evaluation only."""
        models = list(models)
        _add(self.models, models)
        for model in models:
            (self._evaluation_only.add if evaluation_only else self._evaluation_only.discard)(model)

    def _add_loader(self, loader: DataLoader[Any]) -> None:
        if not any(loader is known for known in self.loaders.values()):
            self.loaders[self._num_loaders] = loader
            self._num_loaders += 1
            loader._is_accelerate_prepared = True  # read by libraries

    def _check(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        runtime = current_runtime()
        num_processes = runtime.topology.world_size
        known: list[torch.Tensor] = []
        if optimizers:
            # transformers' Trainer prepares a model that a library has sharded with `evaluation_mode`, but trains it.
            sharded = [model for model in self.models if has_library_mesh(model)]
            # A model may override `parameters()`, but the gradients of all parameters are reduced.
            for model in (*models, *self._trained_models, *sharded):
                known += nn.Module.parameters(model)
            known += self._strategy.replaced
        for model in models:
            check_placement(
                model,
                num_processes=num_processes,
                is_bypassed=self._configuration.is_device_map_allowed,
            )
            if num_processes > 1:
                check_library_mesh(
                    model,
                    runtime.layout,
                    strategy=self._strategy.name,
                    shards_parameters=self._strategy.capabilities.shards_parameters,
                )
        for optimizer in optimizers:
            check_parameters(optimizer, known, num_processes=num_processes)

    def _place(self, device_placement: bool | None) -> bool:
        return self._configuration.device_placement if device_placement is None else device_placement


def _add(things: list[Any], new: Iterable[Any]) -> None:
    for item in new:
        item._is_accelerate_prepared = True  # read by libraries
        if not any(item is old for old in things):
            things.append(item)
