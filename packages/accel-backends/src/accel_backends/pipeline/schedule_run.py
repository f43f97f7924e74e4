"""One batch on its way through the stages of this rank, and back."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from accel_backends.pipeline.messages import ForwardMessages, Handover, Key, Peer, ReceiveQueue, lane
from accel_backends.pipeline.schedules import Action, Pass
from accel_backends.pipeline.split_backward import SplitBackward
from accel_backends.pipeline.stage_root import Reductions, StageRoot
from accel_backends.pipeline.stages import StagedModel
from accel_ops.memory import should_reduce_batch_size

T = TypeVar("T")
_LOST = RuntimeError("The previous stage has failed, and reports it.")


@dataclass(frozen=True, slots=True)
class PipelinePlace:
    """Where this rank stands in its pipeline.

    Attributes:
        ranks: The ranks of the pipeline; stages are assigned to them in turn.
        index: The index of this rank among them.
        group: The process group of these ranks; None: that of the world.
        forward_groups: Process groups for activations alone, by the `lane` of the sender; None: that of the world.
        backward_groups: The same for gradients, which travel against the activations.
        num_pipelines: How many pipelines there are, of which some may read other batches.
    """

    ranks: tuple[int, ...]
    index: int
    group: dist.ProcessGroup | None = None
    forward_groups: Sequence[dist.ProcessGroup | None] = (None,)
    backward_groups: Sequence[dist.ProcessGroup | None] = (None,)
    num_pipelines: int = 1

    def peer(self, step: int, *, sender: int, is_forward: bool) -> Peer:
        """Return the rank ``step`` further in the ring, for what the rank ``sender`` further sends."""
        num_ranks = len(self.ranks)
        groups = self.forward_groups if is_forward else self.backward_groups
        group = groups[lane((self.index + sender) % num_ranks, num_ranks) % len(groups)]
        return Peer(self.ranks[(self.index + step) % num_ranks], group)


class ScheduleRun:
    """One batch on its way through the stages of this rank.

    Other ranks count on what this one sends: if it fails, it sends zeros until all micro-batches are through.

    Args:
        staged: The model.
        place: Where this rank stands.
        calls: For each micro-batch the call of the model.
        messages: What stages send.
        device: The device of this rank.
        root: The root of this rank's stages if they are sharded.
        take: Called on the last stage with the result of each call; returns the loss if gradients are computed.
        scaled: Returns, for a loss and the number of its micro-batch, what gradients are computed of.
        schedule_of: Returns the actions of the rank at a place of the pipeline.
    """

    def __init__(
        self,
        staged: StagedModel,
        place: PipelinePlace,
        *,
        calls: Sequence[Callable[[], Any]],
        messages: ForwardMessages,
        device: torch.device,
        root: StageRoot | None,
        take: Callable[[Any], torch.Tensor | None],
        scaled: Callable[[torch.Tensor, int], torch.Tensor],
        schedule_of: Callable[[int], list[Action]],
    ) -> None:
        self._staged = staged
        self._last = staged.num_stages - 1
        self._root = root
        self._calls = calls
        self._messages = messages
        self._device = device
        self._take = take
        self._scaled = scaled
        self._trains = torch.is_grad_enabled()
        num_ranks = len(place.ranks)
        before, after = (place.index - 1) % num_ranks, (place.index + 1) % num_ranks
        self._to_following = place.peer(1, sender=0, is_forward=True)
        self._to_previous = place.peer(-1, sender=0, is_forward=False)
        previous = place.peer(-1, sender=-1, is_forward=True)
        following = place.peer(1, sender=1, is_forward=False)
        self._activations = ReceiveQueue(
            _messages(schedule_of(before), step=1, end=self._last),
            answered=self._to_previous,
            receive=lambda key: messages.receive(previous, key[0] - 1, key[1]),
        )
        self._gradients = ReceiveQueue(
            _messages(schedule_of(after), step=-1, end=0),
            answered=self._to_following,
            receive=lambda key: following.receive(
                _differentiable(messages.handover(*key).tensors), device=device
            ),
        )
        self._open: dict[Key, tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = {}
        self._split: dict[Key, SplitBackward] = {}
        self._last_passes: dict[int, int] = {}
        """For each stage the micro-batch whose backward pass is its last one, the last of the rank at the end."""
        self._error: BaseException | None = None

    def run(self, actions: Sequence[Action]) -> None:
        """Run the actions of a schedule."""
        for action in actions:
            if action.kind in (Pass.BACKWARD, Pass.BACKWARD_WEIGHT):
                self._last_passes.pop(action.stage, None)
                self._last_passes[action.stage] = action.micro_batch
        passes: dict[Pass, Callable[[int, int], None]] = {Pass.FORWARD: self._forward}
        if self._trains:
            passes |= {
                Pass.BACKWARD: self._backward,
                Pass.BACKWARD_INPUT: self._backward_to_inputs,
                Pass.BACKWARD_WEIGHT: self._backward_to_weights,
            }
        for action in actions:
            if action.kind in passes:
                passes[action.kind](action.stage, action.micro_batch)
        self._to_following.finish()
        self._to_previous.finish()
        if self._error is not None and self._error is not _LOST:
            raise self._error

    def _forward(self, stage: int, number: int) -> None:
        received: list[torch.Tensor] = []
        if stage > 0:
            received = self._activations.take((stage, number))
            if self._messages.has_lost and self._error is None:
                self._error = _LOST
            for tensor in _differentiable(received):
                tensor.requires_grad_(self._trains)
        values: tuple[torch.Tensor | None, ...] | None = None
        values = self._attempt(lambda: self._compute(stage, number, received), values)
        if stage < self._last:
            self._messages.send(self._to_following, stage, number, values)
        if self._trains:
            self._open[stage, number] = received, [one for one in values or () if one is not None]

    def _compute(
        self, stage: int, number: int, received: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        """Return what the next stage gets of a micro-batch, or in the last one the loss."""
        handover = self._messages.handover(stage - 1, number) if stage > 0 else Handover()

        def run(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
            output = self._staged.run(stage, self._calls[number], handover.with_none(tensors))
            return (self._take(output.result),) if stage == self._last else output.values

        values: tuple[torch.Tensor | None, ...]
        values = run(received) if self._root is None else self._root(run, received)
        if stage < self._last:
            self._messages.check(stage, number, values)
        return values

    def _backward(self, stage: int, number: int) -> None:
        received, outputs = self._open.pop((stage, number))
        roots, gradients = self._roots(stage, number, outputs)

        def compute() -> None:
            with self._ending(stage, number):
                torch.autograd.backward(roots, gradients)

        if roots:
            self._attempt(compute, None)
        self._hand_back(stage, received)

    def _backward_to_inputs(self, stage: int, number: int) -> None:
        received, outputs = self._open.pop((stage, number))
        roots, gradients = self._roots(stage, number, outputs)
        inputs = _differentiable(received)

        def compute() -> None:
            if self._root is not None and inputs:
                self._root.gather(stage)
            split = SplitBackward(roots, gradients, inputs, self._staged.trained_in(stage))
            with self._ending(None, number):
                split.to_inputs()
            self._split[stage, number] = split

        if roots:
            self._attempt(compute, None)
        self._hand_back(stage, received)

    def _backward_to_weights(self, stage: int, number: int) -> None:
        split = self._split.pop((stage, number), None)
        if split is not None:
            self._attempt(lambda: self._complete(split, stage, number), None)

    def _complete(self, split: SplitBackward, stage: int, number: int) -> None:
        if self._root is None or split.is_whole:  # an ordinary backward pass
            with self._ending(stage, number):
                split.to_weights()
            return
        self._root.gather(stage)
        with self._ending(None, number):
            split.to_weights()
        self._root.finish(stage, self._reductions(stage, number))

    def _ending(self, stage: int | None, number: int) -> AbstractContextManager[None]:
        """Return a block in which backward passes are those of one sharded stage, or do not end."""
        if self._root is None:
            return nullcontext()
        return self._root.ending(stage, Reductions.NONE if stage is None else self._reductions(stage, number))

    def _reductions(self, stage: int, number: int) -> Reductions:
        """Return what is reduced after the backward pass of a micro-batch: each gradient once in a batch."""
        if self._last_passes[stage] != number:
            return Reductions.NONE
        return Reductions.ALL if stage == [*self._last_passes][-1] else Reductions.UNITS

    def _roots(
        self, stage: int, number: int, outputs: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Return from where gradients are computed, and the gradients that the next stage has computed there."""
        if stage == self._last:
            losses: list[torch.Tensor] = []
            losses = self._attempt(lambda: [self._scaled(outputs[0], number)], losses)
            return losses, [None] * len(losses)
        ends = _differentiable(outputs)
        gradients = self._gradients.take((stage, number))
        has_all = self._error is None  # a forward pass that failed has no results
        pairs = [pair for pair in zip(ends, gradients, strict=has_all) if pair[0].requires_grad]
        return [end for end, _ in pairs], [gradient for _, gradient in pairs]

    def _hand_back(self, stage: int, received: Sequence[torch.Tensor]) -> None:
        if stage > 0:
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
                self._free_activations(raised)
        return otherwise

    def _free_activations(self, error: BaseException) -> None:
        """Free what no backward pass will need; the zeros that are sent from now on take memory, too."""
        self._split.clear()
        for key, (received, outputs) in self._open.items():
            self._open[key] = received, [tensor.detach() for tensor in outputs]
        if should_reduce_batch_size(error):
            traceback.clear_frames(error.__traceback__)


def _messages(actions: Sequence[Action], *, step: int, end: int) -> list[tuple[Key, int]]:
    """Return what a neighbour sends ``step`` stages on, but from ``end``, and how many messages it has received before.

    It receives from where it sends: gradients of what it sent, or activations whose gradients it sends back.
    """
    messages: list[tuple[Key, int]] = []
    num_received = 0
    for one in actions:
        if one.kind is Pass.BACKWARD_WEIGHT or one.stage == end:
            continue
        if (one.kind is Pass.FORWARD) == (step > 0):
            messages.append(((one.stage + step, one.micro_batch), num_received))
        else:
            num_received += 1
    return messages


def _differentiable(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]
