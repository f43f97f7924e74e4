"""Make models, optimizers, schedulers and loaders ready for the run; strategy and accel-data do the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

import accel_data
import accel_ops
from accel.arrangement import Arrangement
from accel.configuration import RunConfiguration
from accel.ownership import check_parameters, check_placement, has_device_map
from accel.prepared_loaders import PreparedLoaders
from accel_backends import AcceleratedOptimizer, AcceleratedScheduler, Strategy
from accel_backends.stepping.stepper import Stepper
from accel_data import override_even_batches
from accel_state import PartialState
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel.preemption import Preemption

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


class Preparation:
    """What is prepared, and what was."""

    configuration: RunConfiguration
    processes: PartialState
    _strategy: Strategy
    _models: list[nn.Module]
    _optimizers: list[AcceleratedOptimizer]
    _schedulers: list[AcceleratedScheduler]
    _dataloaders: PreparedLoaders
    _untrained: WeakSet[nn.Module]
    _stepper: Stepper
    _preemption: Preemption | None

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
        if device_placement is not None and len(device_placement) != len(objects):
            raise ConfigError(
                f"`device_placement` has {len(device_placement)} entries for {len(objects)} objects. "
                "Give one per object, or leave it out."
            )
        places = device_placement or [self.device_placement] * len(objects)
        arrangement = Arrangement(objects, places, found=self._found)
        self._check(arrangement.bundle.models, arrangement.bundle.optimizers)
        ready = self._strategy.prepare(arrangement.bundle, device_placement=arrangement.placement)
        self._remember(models=ready.models, optimizers=ready.optimizers, schedulers=ready.schedulers)
        self._untrained.difference_update(ready.models)
        results = arrangement.results(ready)
        return results[0] if len(results) == 1 else results

    def _found(self, thing: object) -> Any | None:
        """Return what `thing` was prepared to, or itself if it is a prepared object; None if neither."""
        if isinstance(thing, nn.Module):
            return self._found_model(thing)
        inside: dict[str, list[Any]] = {"optimizer": self._optimizers, "scheduler": self._schedulers}
        for attribute, things in inside.items():
            for ready in things:
                if ready is thing or getattr(ready, attribute, None) is thing:
                    return ready
        return next((loader for loader in self._dataloaders if loader is thing), None)

    def _found_model(self, model: nn.Module) -> nn.Module | None:
        """Return the model that `model` was prepared to for training, or itself if it is that."""
        for ready in self._models:
            if ready not in self._untrained and (
                ready is model
                or self._strategy.unwrap(ready) is model
                or self._strategy.unwrap(ready, keep_torch_compile=False) is model
            ):
                return ready
        return None

    def _check(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        num_processes = self.processes.num_processes
        for model in models:
            check_placement(
                model,
                num_processes=num_processes,
                is_bypassed=self.configuration.is_device_map_allowed,
            )
        trained = [*models, *(model for model in self._models if model not in self._untrained)]
        for optimizer in optimizers:
            check_parameters(optimizer, trained, num_processes=num_processes)

    def verify_device_map(self, model: nn.Module) -> bool:
        """Return whether a device map has spread `model` over several devices."""
        return has_device_map(model)

    def _prepared(self) -> tuple[list[Any] | PreparedLoaders, ...]:
        return self._models, self._optimizers, self._schedulers, self._dataloaders

    def _remember(
        self, *, models: Sequence[Any] = (), optimizers: Sequence[Any] = (), schedulers: Sequence[Any] = ()
    ) -> None:
        for things, new in (
            (self._models, models),
            (self._optimizers, optimizers),
            (self._schedulers, schedulers),
        ):
            things.extend(one for one in new if not any(one is old for old in things))

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Prepare one model; see `prepare`.

        Args:
            model: The model.
            device_placement: Whether to move it to the device; the Accelerator's own choice where left out.
            evaluation_mode: It will not be trained: no gradients are synchronised.
        """
        if not evaluation_mode:
            earlier = self._found_model(model)
            if earlier is not None:
                return earlier
            self._check([model], [])
        ready = self._strategy.prepare_model(
            model, device_placement=self._place(device_placement), evaluation_mode=evaluation_mode
        )
        self._remember(models=[ready])
        (self._untrained.add if evaluation_mode else self._untrained.discard)(ready)
        return ready

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> Optimizer:
        """Prepare one optimizer, whose model was prepared before; see `prepare`."""
        earlier: Optimizer | None = self._found(optimizer)
        if earlier is not None:
            return earlier
        self._check([], [optimizer])
        ready = self._strategy.prepare_optimizer(optimizer, device_placement=self._place(device_placement))
        self._remember(optimizers=[ready])
        return ready

    def prepare_scheduler(self, scheduler: LRScheduler) -> Any:
        """Prepare one scheduler, whose optimizer was prepared before; see `prepare`."""
        earlier = self._found(scheduler)
        if earlier is not None:
            return earlier
        ready = self._strategy.prepare_scheduler(scheduler, optimizers=self._optimizers)
        self._remember(schedulers=[ready])
        return ready

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
        loader = self.configuration.loader
        ready: DataLoader[Any] = accel_data.prepare_data_loader(
            data_loader,
            device=self.processes.device,
            split_batches=loader.split_batches,
            put_on_device=self._place(device_placement),
            rng_types=list(self.configuration.rng_types),
            dispatch_batches=loader.dispatch_batches,
            even_batches=loader.even_batches,
            slice_fn_for_dispatch=slice_fn_for_dispatch,
            use_seedable_sampler=loader.use_seedable_sampler,
            data_seed=loader.data_seed,
            non_blocking=loader.non_blocking,
            use_stateful_dataloader=loader.use_stateful_dataloader,
        )
        self._dataloaders.add(ready)
        if self._preemption is not None:
            self._preemption.keep_workers(ready)
        return ready

    def _place(self, device_placement: bool | None) -> bool:
        return self.device_placement if device_placement is None else device_placement

    @contextmanager
    def join_uneven_inputs(
        self, joinables: Sequence[nn.Module], even_batches: bool | None = None
    ) -> Iterator[None]:
        """Let ranks run out of data at different times: those that are done answer the others' collectives.

        Args:
            joinables: The prepared models that are trained in the block.
            even_batches: What prepared loaders do in the block, instead of their own choice. Those that rank 0
                reads for all keep theirs, with a warning.
        """
        with ExitStack() as stack:
            if even_batches is not None and self.processes.use_distributed:
                for loader in self._dataloaders:
                    stack.enter_context(override_even_batches(loader, even_batches))
            stack.enter_context(self._stepper.over_uneven_inputs())
            stack.enter_context(self._strategy.join_uneven_inputs(joinables))
            yield

    def free_memory(self, *objects: Any) -> Any:
        """Forget everything that was prepared, and where the accumulation stood, and empty the device's cache.

        Args:
            *objects: The caller's own references, which come back as None, to be assigned:
                `model, optimizer = accelerator.free_memory(model, optimizer)`.
        """
        for things in self._prepared():
            things.clear()
        self._stepper.reset()
        return accel_ops.release_memory(*objects)

    def clear(self, *objects: Any) -> Any:
        """Do what `free_memory` does."""
        return self.free_memory(*objects)
