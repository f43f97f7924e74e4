"""Training of a model that is spread over the ranks: micro-batches pass through the stages and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.pipelining.chunks import in_chunks, num_micro_batches
from accel_backends.pipelining.handovers import ForwardMessages, KnownHandovers, shape_of
from accel_backends.pipelining.schedule_run import PipelinePlace, ScheduleRun
from accel_backends.pipelining.schedules import SCHEDULES, Action, Share
from accel_backends.pipelining.shared_gradients import with_gradient
from accel_backends.pipelining.stage_root import StageRoot
from accel_backends.pipelining.stages import StagedModel
from accel_backends.pipelining.together import results_together, run_together
from accel_ops.nested.describe import get_shape, ignorant_find_batch_size
from accel_ops.transport import current_transport
from accel_state.parallelism_handlers import PipelineParallelConfig

LossFunction = Callable[[nn.Module, Any], torch.Tensor]
"""Called with the model and a micro-batch; returns the mean loss of its rows."""


class PipelineTraining:
    """One model in the pipeline: the stages of this rank, and how batches pass through them.

    Args:
        staged: The model.
        settings: How batches pass through.
        place: Where this rank stands.
        device: Where this rank computes.
        root: The root of this rank's stages where they are sharded.
        scaled: Returns, for a loss on the last rank, what gradients are computed of.
    """

    def __init__(
        self,
        staged: StagedModel,
        settings: PipelineParallelConfig,
        *,
        place: PipelinePlace,
        device: torch.device,
        root: StageRoot | None,
        scaled: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self.staged = staged
        self.is_running = False
        self._transport = current_transport()
        self._settings = settings
        self._place = place
        self._device = device
        self._root = root
        self._scaled = scaled
        self._known = KnownHandovers()
        self.used: Sequence[frozenset[int]] = ()
        """For each rank of the pipeline, the shared parameters to which it added a gradient in the last batch."""

    def run(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: LossFunction,
        num_items: Callable[[Any], float | torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Compute the gradients of a batch, or without gradients only its loss. All ranks together.

        Returns:
            The mean loss of the rows, or of what ``num_items`` counts, the same on every stage.
        """
        num_rows = ignorant_find_batch_size(batch) or 1
        parts = in_chunks(batch, num_rows, self._num_parts(num_rows))
        counts = [
            float(ignorant_find_batch_size(part) or 1 if num_items is None else num_items(part))
            for part in parts
        ]
        weights = [count / (sum(counts) or 1.0) for count in counts]
        calls = [partial(loss_fn, model, part) for part in parts]
        agreement: dict[str, Any] = {
            "operation": PipelineTraining.run,
            "inputs": repr(get_shape(batch)),
            "partners": self._place.ranks,
        }
        self.is_running = True
        try:
            shapes = run_together(self._transport, lambda: list(map(shape_of, parts)), **agreement)
            results = results_together(
                self._transport, lambda: self._pass_through(calls, shapes, weights), **agreement
            )
        finally:
            self.is_running = False
        losses, self.used = zip(*(results[rank] for rank in self._place.ranks), strict=True)
        return torch.tensor(losses[-1], dtype=torch.float32, device=self._device)

    def _num_parts(self, num_rows: int) -> int:
        """Return how many micro-batches there are; the same on ranks that have other batches, which share stages."""
        wanted = num_micro_batches(
            num_rows, num_stages=self.staged.num_stages, wanted=self._settings.num_micro_batches
        )
        if self._place.num_pipelines == 1:
            return wanted
        fewest = torch.tensor(wanted, device=self._device)
        dist.all_reduce(fewest, dist.ReduceOp.MIN)
        return int(fewest)

    def _pass_through(
        self, calls: Sequence[Callable[[], Any]], shapes: Sequence[str], weights: Sequence[float]
    ) -> tuple[float, frozenset[int]]:
        """Run this rank's stages for all micro-batches.

        Returns:
            The weighted loss on the last rank, 0 elsewhere; and the shared parameters that have a gradient.
        """
        schedule = partial(self._schedule, num_micro_batches=len(calls))
        schedule_run = ScheduleRun(
            self.staged,
            self._place,
            calls=calls,
            messages=ForwardMessages(self.staged, self._known, shapes, self._device),
            weights=weights,
            device=self._device,
            root=self._root,
            scaled=self._scaled,
            schedule_of=schedule,
        )
        losses = schedule_run.run(schedule(self._place.index))
        values = torch.stack(losses).tolist() if losses else []
        loss = float(sum(value * weight for value, weight in zip(values, weights, strict=False)))
        return loss, with_gradient(self.staged)

    def _schedule(self, index: int, *, num_micro_batches: int) -> list[Action]:
        """Return what the rank at a place of the pipeline does."""
        num_ranks = len(self._place.ranks)
        share = Share(index, num_ranks, self.staged.num_stages // num_ranks, num_micro_batches)
        assert self._settings.schedule is not None  # since it was built
        return SCHEDULES[self._settings.schedule](share)
