"""Batches in a pipeline: their micro-batches pass through the stages of all ranks, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.pipeline.chunks import in_chunks, joined, num_micro_batches
from accel_backends.pipeline.messages import ForwardMessages, KnownHandovers, shape_of
from accel_backends.pipeline.schedule_run import PipelinePlace, ScheduleRun
from accel_backends.pipeline.schedules import SCHEDULES, Action, ScheduleArgs
from accel_backends.pipeline.shared_gradients import with_gradient
from accel_backends.pipeline.stage_root import StageRoot
from accel_backends.pipeline.stages import StagedModel
from accel_backends.pipeline.together import run_together
from accel_ops import send_to_device
from accel_ops.nested.describe import (
    get_data_structure,
    get_shape,
    ignorant_find_batch_size,
    initialize_tensors,
    iterate_tensors,
)
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError

LossFunction = Callable[[nn.Module, Any], torch.Tensor]
"""Called with the model and a micro-batch; returns the mean loss of its rows."""
OutputFunction = Callable[[nn.Module, Any], tuple[torch.Tensor, Any]]
"""The same; returns the loss, and outputs with one value per row."""
ItemCount = Callable[[Any], float | torch.Tensor]
"""Called with a micro-batch; returns the number of items that its loss is a mean over."""


class Pipeline:
    """One model in the pipeline: the stages of this rank, and how batches pass through them.

    Args:
        staged: The model.
        schedule: The name of the schedule.
        place: The place of this rank.
        device: The device of this rank.
        num_micro_batches: Micro-batches of a batch; None: two per stage.
        root: The root of this rank's stages if they are sharded.
    """

    def __init__(
        self,
        staged: StagedModel,
        schedule: str,
        *,
        place: PipelinePlace,
        device: torch.device,
        num_micro_batches: int | None = None,
        root: StageRoot | None = None,
    ) -> None:
        self.staged = staged
        self.is_running = False
        self.used: Sequence[frozenset[int]] = ()
        """For each rank of the pipeline, the shared parameters to which it added a gradient in the last batch."""
        self._transport = current_transport()
        self._schedule = SCHEDULES[schedule]
        self._place = place
        self._device = device
        self._num_micro_batches = num_micro_batches
        self._root = root
        self._known = KnownHandovers()

    def run(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: LossFunction,
        num_items: ItemCount | None = None,
        scaled: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
    ) -> torch.Tensor:
        """Compute the gradients of a batch, or without gradients only its loss. All ranks together.

        ``scaled`` returns, for a loss on the last rank, what gradients are computed of.

        Returns:
            The mean loss of the rows, or of what ``num_items`` counts, the same on every stage.
        """
        parts = self._parts(batch)
        losses: list[torch.Tensor] = []

        def take(result: Any) -> torch.Tensor:
            loss = _checked_loss(result)
            losses.append(loss.detach())
            return loss

        weights = _weights(parts, num_items)
        calls = [partial(loss_fn, model, part) for part in parts]
        results = self._pass_through(
            parts,
            calls,
            take,
            lambda loss, number: scaled(loss * weights[number]),
            lambda: (_mean(losses, weights), self._averaged()),
            batch,
        )
        means, self.used = zip(*results, strict=True)
        return torch.tensor(means[-1], dtype=torch.float32, device=self._device)

    def evaluate(
        self, model: nn.Module, batch: Any, loss_fn: OutputFunction, num_items: ItemCount | None = None
    ) -> tuple[torch.Tensor, Any]:
        """Return the loss of a batch as `run` does, and its outputs, both on every stage. All ranks together.

        Raises:
            ConfigError: If ``loss_fn`` returns no such pair, or outputs of micro-batches cannot be joined.
        """
        parts = self._parts(batch)
        rows = [ignorant_find_batch_size(part) or 1 for part in parts]

        def call(part: Any, num_rows: int) -> tuple[torch.Tensor, Any]:
            loss, outputs = _checked_pair(loss_fn(model, part))
            return loss.float().expand(num_rows), outputs

        calls = [partial(call, part, number) for part, number in zip(parts, rows, strict=True)]
        losses, outputs = self._outputs(parts, calls, batch, everywhere=True)
        means = [part[0] for part in losses.split(rows)]
        weights = torch.tensor(_weights(parts, num_items), device=self._device)
        return (torch.stack(means) * weights).sum(), outputs

    def forward(
        self,
        call: Callable[..., Any],
        inputs: tuple[Any, dict[str, Any]],
        *,
        num_chunks: int,
        everywhere: bool,
    ) -> Any:
        """Return what ``call`` of the model returns for ``inputs``, on the last rank or everywhere; None elsewhere."""
        parts = in_chunks(inputs, ignorant_find_batch_size(inputs) or 1, num_chunks)
        calls = [partial(call, *args, **kwargs) for args, kwargs in parts]
        return self._outputs(parts, calls, inputs, everywhere=everywhere)

    @torch.no_grad()
    def _outputs(
        self, parts: Sequence[Any], calls: Sequence[Callable[[], Any]], inputs: Any, *, everywhere: bool
    ) -> Any:
        """Return the outputs of all parts as one, on the last rank or everywhere; None elsewhere."""
        outputs: list[Any] = []
        full: list[Any] = []

        def describe() -> Any:
            if outputs:  # of the last stage
                full.append(joined(outputs, [ignorant_find_batch_size(part) or 1 for part in parts]))
            return get_data_structure(full[0]) if full and everywhere else None

        structure = self._pass_through(parts, calls, outputs.append, lambda loss, _: loss, describe, inputs)[
            -1
        ]
        output = full[0] if full else None
        return self._shared(output, structure) if everywhere else output

    def _shared(self, output: Any, structure: Any) -> Any:
        """Return the output of the last rank on all ranks of the pipeline."""
        last = self._place.ranks[-1]
        if self._transport.rank != last:
            output = send_to_device(initialize_tensors(structure), self._device)
        for tensor in iterate_tensors(output):
            dist.broadcast(
                tensor.detach().contiguous().reshape(-1).view(torch.uint8), last, group=self._place.group
            )
        return output

    def _pass_through(
        self,
        parts: Sequence[Any],
        calls: Sequence[Callable[[], Any]],
        take: Callable[[Any], torch.Tensor | None],
        scaled: Callable[[torch.Tensor, int], torch.Tensor],
        finish: Callable[[], Any],
        inputs: Any,
    ) -> list[Any]:
        """Run the stages of this rank for all parts; return what ``finish`` returns on each rank of the pipeline."""
        agreement: dict[str, Any] = {
            "transport": self._transport,
            "operation": Pipeline.run,
            "inputs": repr(get_shape(inputs)),
            "partners": self._place.ranks,
        }
        schedule = partial(self._actions, num_micro_batches=len(parts))

        def run() -> Any:
            messages = ForwardMessages(self.staged, self._known, shapes, self._device)
            ScheduleRun(
                self.staged,
                self._place,
                calls=calls,
                messages=messages,
                device=self._device,
                root=self._root,
                take=take,
                scaled=scaled,
                schedule_of=schedule,
            ).run(schedule(self._place.index))
            return finish()

        self.is_running = True
        try:
            shapes = run_together(lambda: list(map(shape_of, parts)), **agreement)[self._transport.rank]
            results = run_together(run, **agreement)
        except BaseException:
            if self._root is not None:
                self._root.drop_unreduced()
            raise
        finally:
            self.is_running = False
        return [results[rank] for rank in self._place.ranks]

    def _averaged(self) -> frozenset[int]:
        """Average the gradients of replicated parameters; return the shared parameters that have a gradient."""
        if self._root is not None and self._root.replicated is not None and torch.is_grad_enabled():
            self._root.replicated.average()
        return with_gradient(self.staged)

    def _parts(self, batch: Any) -> list[Any]:
        """Return the micro-batches: as many on ranks that have other batches, which share stages."""
        num_rows = ignorant_find_batch_size(batch) or 1
        wanted = num_micro_batches(
            num_rows, num_stages=self.staged.num_stages, wanted=self._num_micro_batches
        )
        if self._place.num_pipelines > 1:
            fewest = torch.tensor(wanted, device=self._device)
            dist.all_reduce(fewest, dist.ReduceOp.MIN)
            wanted = int(fewest)
        return in_chunks(batch, num_rows, wanted)

    def _actions(self, index: int, *, num_micro_batches: int) -> list[Action]:
        """Return the actions of the rank at a place of the pipeline."""
        num_ranks = len(self._place.ranks)
        return self._schedule(
            ScheduleArgs(index, num_ranks, self.staged.num_stages // num_ranks, num_micro_batches)
        )


def _weights(parts: Sequence[Any], num_items: ItemCount | None) -> list[float]:
    counts = [
        float(ignorant_find_batch_size(part) or 1 if num_items is None else num_items(part)) for part in parts
    ]
    return [count / (sum(counts) or 1.0) for count in counts]


def _mean(losses: Sequence[torch.Tensor], weights: Sequence[float]) -> float:
    """Return the weighted loss on the last rank, 0 elsewhere."""
    values = torch.stack(list(losses)).tolist() if losses else []
    return float(sum(value * weight for value, weight in zip(values, weights, strict=False)))


def _checked_loss(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"{loss!r}"
        raise ConfigError(
            f"`loss_fn` must return the mean loss of a micro-batch, a tensor without dimensions, got {what}."
        )
    return loss


def _checked_pair(result: Any) -> tuple[torch.Tensor, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise ConfigError(
            f"`loss_fn` of `evaluate` must return a tuple of the loss and the outputs, got a {type(result).__name__}."
        )
    return _checked_loss(result[0]), result[1]
