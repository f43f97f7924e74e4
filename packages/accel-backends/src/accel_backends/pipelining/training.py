"""Training of a model that is spread over the ranks: micro-batches pass through the stages and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.pipelining.chunks import in_chunks
from accel_backends.pipelining.passing import Neighbour, zeros_like
from accel_backends.pipelining.schedules import SCHEDULES, Action
from accel_backends.pipelining.stages import StagedModel, StageOutput
from accel_backends.pipelining.together import run_together
from accel_backends.pipelining.trace import Trace
from accel_ops.nested.description import get_data_structure, ignorant_find_batch_size
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError
from accel_state.parallelism_handlers import PipelineParallelConfig

T = TypeVar("T")

LossFunction = Callable[[nn.Module, Any], torch.Tensor]
"""Called with the model and a micro-batch; returns the mean loss of its rows."""


class PipelineTraining:
    """One model in the pipeline: which part of it this rank has, and how batches pass through.

    Args:
        staged: The model.
        settings: How batches pass through.
        device: Where this rank computes.
        backward_group: A process group for gradients alone, which travel against the activations.
        backward: Called with a loss on the last rank, to compute its gradients.
    """

    def __init__(
        self,
        staged: StagedModel,
        settings: PipelineParallelConfig,
        *,
        device: torch.device,
        backward_group: dist.ProcessGroup,
        backward: Callable[[torch.Tensor], None],
    ) -> None:
        self.staged = staged
        self.is_running = False
        self._transport = current_transport()
        self._settings = settings
        self._stage = self._transport.rank
        self._device = device
        self._backward_group = backward_group
        self._backward = backward
        self._traces: dict[str, Trace] = {}

    def run(self, model: nn.Module, batch: Any, loss_fn: LossFunction) -> torch.Tensor:
        """Compute the gradients of a batch, or without gradients only its loss. All ranks together.

        Returns:
            The mean loss of the rows, the same on every rank.
        """
        num_rows = ignorant_find_batch_size(batch) or 1
        wanted = self._settings.num_micro_batches or 2 * self.staged.num_stages
        parts = in_chunks(batch, num_rows, wanted)
        weights = [(ignorant_find_batch_size(part) or 1) / num_rows for part in parts]
        calls = [partial(loss_fn, model, part) for part in parts]
        shapes = repr(get_data_structure(batch))
        together = partial(run_together, self._transport, operation=PipelineTraining.run, arguments=(shapes,))
        self.is_running = True
        try:
            traces = together(
                lambda: [self._trace(call, part) for call, part in zip(calls, parts, strict=True)]
            )
            losses = together(lambda: self._pass_through(calls, traces, weights))
        finally:
            self.is_running = False
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for loss, weight in zip(losses, weights, strict=False):
            total += loss * weight
        dist.broadcast(total, self.staged.num_stages - 1)
        return total.float()

    def _trace(self, call: Callable[[], Any], part: Any) -> Trace:
        key = repr(get_data_structure(part))
        if key not in self._traces:
            self._traces[key] = self.staged.trace(call)
            self.staged.hold(self._stage, self._traces[key])
        return self._traces[key]

    def _pass_through(
        self, calls: Sequence[Callable[[], Any]], traces: Sequence[Trace], weights: Sequence[float]
    ) -> list[torch.Tensor]:
        """Run this rank's stage for all micro-batches; return the losses on the last rank."""
        passage = _Passage(
            self.staged,
            self._stage,
            calls=calls,
            traces=traces,
            weights=weights,
            device=self._device,
            backward_group=self._backward_group,
            backward=self._backward,
        )
        schedule = SCHEDULES[self._settings.schedule]
        with self.staged.without_other_stages():
            return passage.run(schedule(self._stage, self.staged.num_stages, len(calls)))


class _Passage:
    """One batch on its way through this rank's stage.

    Other ranks count on what this one sends: if it fails, it sends zeros until all micro-batches are through.
    """

    def __init__(
        self,
        staged: StagedModel,
        stage: int,
        *,
        calls: Sequence[Callable[[], Any]],
        traces: Sequence[Trace],
        weights: Sequence[float],
        device: torch.device,
        backward_group: dist.ProcessGroup,
        backward: Callable[[torch.Tensor], None],
    ) -> None:
        self._staged = staged
        self._stage = stage
        self._is_last = stage == staged.num_stages - 1
        self._calls = calls
        self._traces = traces
        self._weights = weights
        self._device = device
        self._backward_from = backward
        self._trains = torch.is_grad_enabled()
        self._from_previous, self._to_following = Neighbour(stage - 1), Neighbour(stage + 1)
        self._to_previous = Neighbour(stage - 1, backward_group)
        self._from_following = Neighbour(stage + 1, backward_group)
        self._open: dict[int, tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = {}
        self._losses: list[torch.Tensor] = []
        self._error: BaseException | None = None

    def run(self, actions: Sequence[Action]) -> list[torch.Tensor]:
        """Do what the schedule says, and return the losses where this is the last stage."""
        for action in actions:
            if action.is_forward:
                self._forward(action.micro_batch)
            elif self._trains:
                self._backward(action.micro_batch)
        self._to_following.finish()
        self._to_previous.finish()
        if self._error is not None:
            raise self._error
        return self._losses

    def _forward(self, number: int) -> None:
        trace = self._traces[number]
        received: list[torch.Tensor] = []
        if self._stage > 0:
            received = self._from_previous.receive(trace.handovers[self._stage - 1].like, device=self._device)
            for tensor in _differentiable(received):
                tensor.requires_grad_(self._trains)
        output = self._attempt(
            lambda: self._staged.run(self._stage, self._calls[number], received, trace), StageOutput()
        )
        outputs = output.tensors
        if self._is_last:
            losses: list[torch.Tensor] = []
            self._attempt(lambda: losses.append(_checked_loss(output.result)), None)
            self._losses += [loss.detach() for loss in losses]
            outputs = tuple(losses)
        else:
            if self._error is not None:
                outputs = tuple(zeros_like(trace.handovers[self._stage].like, self._device))
            self._to_following.send(outputs)
        if self._trains:
            self._open[number] = received, outputs

    def _backward(self, number: int) -> None:
        received, outputs = self._open.pop(number)
        if self._is_last:
            self._attempt(lambda: self._backward_from(outputs[0] * self._weights[number]), None)
        else:
            ends = _differentiable(outputs)
            gradients = self._from_following.receive(ends, device=self._device)
            pairs = [pair for pair in zip(ends, gradients, strict=True) if pair[0].requires_grad]
            if pairs:
                roots, weights = zip(*pairs, strict=True)
                self._attempt(lambda: torch.autograd.backward(roots, weights), None)
        if self._stage > 0:
            self._to_previous.send(
                [
                    torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                    for tensor in _differentiable(received)
                ]
            )

    def _attempt(self, compute: Callable[[], T], otherwise: T) -> T:
        """Return what ``compute`` returns, or ``otherwise`` from the first error on."""
        if self._error is None:
            try:
                return compute()
            except BaseException as raised:  # noqa: BLE001 - raised at the end of `run`
                self._error = raised
        return otherwise


def _differentiable(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _checked_loss(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"{loss!r}"
        raise ConfigError(
            f"`loss_fn` must return the mean loss of a micro-batch, a tensor without dimensions, got {what}."
        )
    return loss
