"""One training step: which micro-batches accumulate, backward, clipping."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from accel_backends.optimizer import AcceleratedOptimizer
from accel_backends.precisions.precision import Precision
from accel_backends.stepping.weighted_loss import WeightedLoss
from accel_backends.strategies.capabilities import ForwardBackward, Sync
from accel_backends.strategies.strategy import Strategy
from accel_backends.unwrap import inner_optimizer
from accel_state import ConfigError, GradientState, current_runtime, has_runtime
from accel_state.errors import StateError
from accel_state.user_warnings import warn_user


class Stepper:
    """Counts micro-batches, and computes, scales and clips the gradients of an accumulation window.

    Args:
        strategy: Computes gradients and synchronizes them.
        precision: Scales losses and unscales gradients.
        gradient: The state that optimizers and loaders share: whether this micro-batch ends a window.
        weights: Weighs losses by their number of items.
        models: The prepared models; the list may grow.
        optimizers: The prepared optimizers; the list may grow.
        num_processes: Processes in the run.
        is_debugging: Compare, before each backward that synchronizes gradients, what the ranks do.
    """

    def __init__(
        self,
        *,
        strategy: Strategy,
        precision: Precision,
        gradient: GradientState,
        weights: WeightedLoss,
        models: Sequence[nn.Module],
        optimizers: Sequence[AcceleratedOptimizer],
        num_processes: int,
        is_debugging: bool,
    ) -> None:
        self._step = 0
        self._num_windows = 0
        self._strategy = strategy
        self._precision = precision
        self._gradient = gradient
        self._weights = weights
        self._models = models
        self._optimizers = optimizers
        self._num_processes = num_processes
        self._on_window_end: Callable[[], None] | None = None
        self._accumulation = strategy.capabilities.accumulation
        self._block_models: tuple[nn.Module, ...] = ()
        self._has_backward = self._has_warned = False
        self._is_debugging = is_debugging
        self._is_half_loaded = False
        self._has_checks = self._is_debugging

    @property
    def step(self) -> int:
        """Micro-batches since the last end of a loader; a multiple of `num_steps` where a window ends."""
        return self._step

    @property
    def num_windows(self) -> int:
        """Windows that ended since the run began, over all its restarts."""
        return self._num_windows

    @property
    def num_steps(self) -> int:
        """Micro-batches in a window."""
        return self._gradient.num_steps

    @property
    def is_accumulating(self) -> bool:
        """Whether a window has begun and not ended."""
        return self._step % self.num_steps != 0

    @property
    def can_defer_sync(self) -> bool:
        """Whether micro-batches that do not end a window skip communication."""
        return self._accumulation is not Sync.NOW and not self._gradient.sync_each_batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the window, in plain numbers. The gradients so far belong to it."""
        num_steps = self._gradient.num_steps
        return {
            "step": self._step,
            "num_steps": num_steps,
            "is_accumulating": self._step % num_steps != 0,
            **{
                name: getattr(one, "item", lambda one=one: one)()
                for name, one in vars(self._weights.window).items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any], *, num_windows: int | None = None) -> None:
        """Resume the window; the caller restores the gradients.

        Args:
            state: From `state_dict`.
            num_windows: Windows that ended before; None: as many as so far.
        """
        self._step = int(state["step"])
        self._block_models = ()
        self._weights.resume(state)
        self._gradient.sync_gradients = not self.is_accumulating
        if num_windows is not None:
            self._num_windows = num_windows

    def set_step(self, step: int) -> None:
        """Count micro-batches on from ``step``."""
        self._step = step

    def call_on_window_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after each backward that ends a window, in place of an earlier one."""
        self._on_window_end = callback

    def reset(self) -> None:
        """Start again with the first micro-batch of a window."""
        self.load_state_dict({"step": 0})

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Return the block of one micro-batch, in which ``models`` are trained."""
        return _Block(self, models)

    def enter(self, models: tuple[nn.Module, ...]) -> ExitStack | None:
        """Count a micro-batch of ``models``; return an ExitStack that re-enables sync, or None if it syncs."""
        self._block_models = models
        gradient = self._gradient
        loader = gradient._begin_micro_batch()
        if loader is not None and gradient.sync_with_dataloader and self._ends_window_early(loader):
            self._step = 0
            gradient.sync_gradients = True
        else:
            self._step += 1
            gradient.sync_gradients = not self.is_accumulating
        is_first = not (self._num_windows or self._has_warned)
        if gradient.sync_gradients or not (is_first or self.can_defer_sync):
            return None
        with ExitStack() as unsynced:
            if is_first:  # later ones pay nothing for these checks
                unsynced.callback(self._check_backward)
                unsynced.callback(register_optimizer_step_post_hook(self._check_optimizer).remove)
            for model in models if self.can_defer_sync else ():
                unsynced.enter_context(self._strategy.gradient_sync(model, sync=self._accumulation))
            return unsynced.pop_all()

    def _check_backward(self) -> None:
        if not self._has_backward and any(
            one.grad is not None for model in self._models for one in model.parameters()
        ):
            self._warn(
                "Gradients in an `accumulate` block were not computed by `accelerator.backward`, which divides them by "
                f"the {self.num_steps} micro-batches of a window. Call `accelerator.backward(loss)`, not "
                "`loss.backward()`."
            )

    def _check_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        trained = {id(one) for model in self._models for one in model.parameters()}
        if any(id(one) in trained for group in optimizer.param_groups for one in group["params"]):
            self._warn(
                f"The optimizer `{type(optimizer).__name__}` is not prepared, so it steps in each micro-batch, with "
                "gradients that are neither complete nor averaged over the processes. Use the one that "
                "`accelerator.prepare(model, optimizer)` returns."
            )

    def _check_loader(self) -> None:
        from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        for one in gc.get_objects():
            if issubclass(type(one), _BaseDataLoaderIter) and type(one._index_sampler) is BatchSampler:
                if type(one._index_sampler.sampler) in (RandomSampler, SequentialSampler):
                    return self._warn(
                        f"A `DataLoader` over a `{type(one._dataset).__name__}` is not prepared, so each of "
                        f"{self._num_processes} processes reads all rows. Use the loader that "
                        "`accelerator.prepare(loader)` returns, or a sampler that yields the part of this process."
                    )
        return None

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(message)

    @contextmanager
    def over_uneven_inputs(self) -> Iterator[None]:
        """Allow different numbers of batches per rank in the block; windows then end with the last batch of any rank.

        Raises:
            ConfigError: In a block that accumulates over a stream, whose end on other ranks is unknown.
        """
        before, self._gradient.joins_uneven_inputs = self._gradient.joins_uneven_inputs, True
        try:
            yield
        finally:
            self._gradient.joins_uneven_inputs = before

    def _ends_window_early(self, loader: Any) -> bool:
        """Whether the window ends with this micro-batch since it is the last of a rank, and all step together."""
        ends = getattr(loader, "ends_some_rank", False)
        if ends is None and self._gradient.joins_uneven_inputs and self.num_steps > 1:
            raise ConfigError(
                "Gradients cannot be accumulated over a stream whose ranks may end at different batches: they would "
                "not know when to step together. Let all ranks get as many with `even_batches=True` or "
                "`dispatch_batches=True`, or set `gradient_accumulation_steps` to 1."
            )
        return bool(ends or loader.end_of_dataloader)

    def backward(self, loss: Tensor, num_items: float | Tensor | None, **kwargs: Any) -> None:
        """Compute the gradients of a mean loss, so that those of the window are of its mean.

        Args:
            loss: A 0-dim tensor.
            num_items: How many items it is a mean over; None: micro-batches count the same.
            **kwargs: Passed to `Tensor.backward` or the engine's own.

        Raises:
            ConfigError: If there is no loss, or ``num_items`` is negative or not finite.
            StateError: If only some micro-batches of a window have ``num_items``, or one has it twice.
        """
        if loss is None:
            raise ConfigError(
                "`backward` got None, not a loss. Models of transformers return none for a batch without `labels`; "
                "loaders that cut sequences give `shift_labels` instead, of which the loss is "
                "`model.loss_function(logits=…, labels=None, shift_labels=…, vocab_size=…)`."
            )
        if self._has_checks:
            self._check_before("backward")
        is_last, self._has_backward = self._gradient.sync_gradients, True
        if num_items is not None:
            self._weights.backward(
                loss,
                num_items,
                is_last=is_last,
                run=partial(self._strategy.backward, **kwargs),
                scale=self._scale_gradients,
                block=self._block_models,
            )
        else:
            self._weights.pass_by(is_last=is_last)
            if "learning_rate" in kwargs:
                self._step_in_backward(loss / self.num_steps, **kwargs)
            else:
                self._strategy.backward(loss, num_steps=self.num_steps, **kwargs)
        if is_last:
            self._end_window()

    def _step_in_backward(self, loss: Tensor, learning_rate: float) -> None:
        fused = self._fused_optimizers()
        if not fused:
            raise ConfigError(
                "`backward` got a `learning_rate`, which is for optimizers that step in the backward pass, such as "
                "LOMO, and none is prepared. Leave it out."
            )
        for optimizer in fused:
            optimizer.fused_backward(loss, learning_rate)

    def forward_backward(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: Callable[[nn.Module, Any], Tensor],
        num_items: Callable[[Any], float | Tensor] | None = None,
    ) -> Tensor:
        """Compute the gradients of ``loss_fn(model, batch)``, or without gradients the loss alone; return the loss.

        With ``num_items``, which counts the items of a batch, they are those of the mean of the window; see `backward`.
        """
        strategy, is_last, self._has_backward = self._strategy, self._gradient.sync_gradients, True
        if not isinstance(strategy, ForwardBackward):
            loss = loss_fn(model, batch)
            if torch.is_grad_enabled():
                self.backward(loss, None if num_items is None else num_items(batch))
            return loss.detach()
        if self._has_checks:
            self._check_before("forward_backward")
        run = partial(strategy.forward_backward, model, batch, loss_fn, num_items=num_items)
        if not torch.is_grad_enabled():
            return run()
        if num_items is None:
            self._weights.pass_by(is_last=is_last)
            loss = run(num_steps=self.num_steps)
        else:
            losses: list[Tensor] = []
            self._weights.backward(
                torch.ones((), dtype=torch.float64),
                num_items(batch),
                is_last=is_last,
                run=lambda weight: losses.append(run(weight=weight.item())),
                scale=self._scale_gradients,
                block=self._block_models,
            )
            (loss,) = losses
        if is_last:
            self._end_window()
        return loss

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Load the state of a run in the block. Unless it completes, models and optimizers are not used any more."""
        self._is_half_loaded = self._has_checks = True
        yield
        self._is_half_loaded, self._has_checks = False, self._is_debugging

    def check_loaded(self, operation: str) -> None:
        """Raise a `StateError` if the last load was interrupted."""
        if self._is_half_loaded:
            raise StateError(
                f"`{operation}` needs a state of one save, but an earlier `load_state` was interrupted or failed after "
                "it had changed part of the models and optimizers. Call `load_state` again first."
            )

    def _check_before(self, operation: str) -> None:
        """In debug mode, also block until all ranks have reached a backward pass that synchronizes gradients."""
        self.check_loaded(operation)
        if not self._is_debugging:
            return
        is_synced = self._gradient.sync_gradients or not self.can_defer_sync
        if self._optimizers and is_synced and not self._gradient.joins_uneven_inputs:
            # False in `no_sync` of DDP.
            if all(getattr(model, "require_backward_grad_sync", True) for model in self._models):
                current_runtime().await_arrival(operation)

    def _end_window(self) -> None:
        if not self._num_windows and self._num_processes > 1 and not self._gradient.in_dataloader:
            if has_runtime() and current_runtime().layout.num_data_ranks > 1:
                self._check_loader()
        self._num_windows += 1
        if self._on_window_end is not None:
            self._on_window_end()

    def fused_backward(self, loss: Tensor, learning_rate: float) -> None:
        """Compute gradients and update each parameter at once, by the one optimizer that can.

        Raises:
            ConfigError: With several processes, or if not exactly one prepared optimizer can.
        """
        if self._num_processes > 1:
            raise ConfigError(
                "`lomo_backward` updates parameters before their gradients are averaged over processes, which "
                "would then train models of their own. Start one process, or use another optimizer."
            )
        fused = self._fused_optimizers()
        if len(fused) != 1:
            raise ConfigError(
                f"`lomo_backward` needs one prepared optimizer that has `fused_backward`, found {len(fused)}. "
                "Prepare a `Lomo` or `AdaLomo` of the package `lomo_optim`."
            )
        fused[0].fused_backward(loss, learning_rate)

    def _fused_optimizers(self) -> list[Any]:
        """Return the optimizers that step in the backward pass."""
        inner = map(inner_optimizer, self._optimizers)
        return [optimizer for optimizer in inner if callable(getattr(optimizer, "fused_backward", None))]

    def unscale_gradients(
        self, optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None
    ) -> None:
        """Divide the fp16 scale out of the gradients of the given optimizers, or of all, once per window."""
        if not self._gradient.sync_gradients:
            return
        if optimizer is None:
            chosen: Iterable[torch.optim.Optimizer] = self._optimizers
        else:
            chosen = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        for one in chosen:
            self._precision.unscale(one)

    def clip_grad_norm(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float
    ) -> Tensor | None:
        """Clip complete gradients to a norm, and return the norm before; incomplete ones are only measured."""
        if not self._gradient.sync_gradients:
            norm = self._strategy.clip_grad_norm(parameters, math.inf, norm_type)
            return None if norm is None else norm / self._precision.scale(torch.ones_like(norm))
        self.unscale_gradients()
        return self._strategy.clip_grad_norm(parameters, max_norm, norm_type)

    def clip_grad_value(self, parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
        """Clamp complete gradients; incomplete ones stay."""
        if self._gradient.sync_gradients:
            self.unscale_gradients()
            self._strategy.clip_grad_value(parameters, clip_value)

    def _scale_gradients(self, factor: float | Tensor) -> None:
        self._strategy.scale_gradients(self._block_models or self._models, factor)


class _Block:
    """The block of one micro-batch."""

    __slots__ = ("_models", "_stepper", "_unsynced")

    def __init__(self, stepper: Stepper, models: tuple[nn.Module, ...]) -> None:
        self._stepper = stepper
        self._models = models
        self._unsynced: ExitStack | None = None

    def __enter__(self) -> None:
        self._unsynced = self._stepper.enter(self._models)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unsynced is not None:
            self._unsynced.close()
