"""Gradients averaged over processes, which XLA devices do not do in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from accel_backends.strategies.xla import packages
from accel_state.gradient_state import GradientState


class GradientReduction:
    """Averages each gradient over the processes once after the backward passes that computed it.

    Whoever reads complete gradients calls `reduce` first: clipping, scaling, the optimizer. All processes must call it
    for the same parameters in the same order, since the collective is part of the program that each of them compiles.

    Args:
        num_processes: How many compute gradients; with one there is nothing to do.
        gradient: Told by ``is_xla_gradients_synced`` whether the last gradients have been averaged.
    """

    def __init__(self, num_processes: int, gradient: GradientState) -> None:
        self._num_processes = num_processes
        self._gradient = gradient
        # Parameter -> whether its gradient has parts of this process alone.
        self._is_open: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note from now on which gradients are computed. A parameter is watched once."""
        if self._num_processes == 1:
            return
        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._is_open:
                self._is_open[parameter] = parameter.grad is not None
                # torch leaves it unannotated
                parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def reduce(self, parameters: Iterable[torch.Tensor]) -> None:
        """Average those gradients of ``parameters`` that have not been since they were computed. Communicates."""
        if self._num_processes == 1:
            return
        chosen = [parameter for parameter in parameters if parameter.grad is not None]
        self.watch(chosen)  # one that was unfrozen after its model was prepared
        opened = [parameter for parameter in chosen if self._is_open[parameter]]
        if opened:
            gradients = [parameter.grad for parameter in opened]
            packages.model().all_reduce("sum", gradients, scale=1.0 / self._num_processes)
            for parameter in opened:
                self._is_open[parameter] = False
        self._gradient.is_xla_gradients_synced = True

    def before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Average the gradients that ``optimizer`` is about to use; a hook of `register_step_pre_hook`.

        A closure, which computes gradients within the step, averages them at its end.
        """
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.reduce(parameters)
        own, *rest = args
        if rest and rest[0] is not None:
            rest[0] = self._reducing(rest[0], parameters)
        if kwargs.get("closure") is not None:
            kwargs = {**kwargs, "closure": self._reducing(kwargs["closure"], parameters)}
        return (own, *rest), kwargs

    def _reducing(self, closure: Callable[[], Any], parameters: list[torch.Tensor]) -> Callable[[], Any]:
        def computed() -> Any:
            loss = closure()
            self.reduce(parameters)
            return loss

        return computed

    def _note(self, parameter: torch.Tensor) -> None:
        self._is_open[parameter] = True
        self._gradient.is_xla_gradients_synced = False
