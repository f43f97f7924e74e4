"""Layouts of a number of ranks whose memory is enough for a model, those that send least first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from torch import nn

from accel.planning.step import Step, model_sizes, planned_step
from accel_backends.plans.plan import ParallelPlan
from accel_state.errors import ConfigError
from accel_state.layout_rules import broken_rules
from accel_state.mesh_layout import MeshLayout

_MOST = 8  # ranks that share layers or sequences, and stages: what one machine has
_LEAST_TOKENS = 1024  # of a sequence, for a rank that shares it
_MOST_PREPARED = 5
_TRAINED_BYTES = 16  # of a parameter in fp32, its gradient, and two averages of AdamW


@dataclass(frozen=True, slots=True)
class Proposal:
    """A layout and what it needs.

    Attributes:
        layout: How the ranks are arranged.
        num_bytes: Memory of the stage that needs most.
        moved: Bytes that all ranks together send for one sequence, by the axes along which they send them.
    """

    layout: MeshLayout
    num_bytes: int
    moved: Mapping[str, float]

    @property
    def sent_per_sequence(self) -> float:
        """Bytes that all ranks together send for one sequence."""
        return sum(self.moved.values())


@dataclass(slots=True)
class Search:
    """What was found among the layouts.

    Attributes:
        proposals: Those that were prepared, which send least first.
        failed: The errors of those that failed; an error is that of all layouts with these stages and ranks that
            share layers or sequences.
        num_skipped: Layouts that need more than there is by arithmetic alone: with what they store, and their part of
            the activations of a layout that was prepared.
    """

    proposals: list[Proposal] = field(default_factory=list)
    failed: dict[MeshLayout, str] = field(default_factory=dict)
    num_skipped: int = 0


def search(model: nn.Module, plan: ParallelPlan, *, num_ranks: int, memory: int, step: Step) -> Search:
    """Prepare the best layouts that may fit, few ranks that share layers, sequences and stages first.

    Args:
        model: On the meta device; it stays as it is.
        plan: From `resolve_plan`.
        num_ranks: Ranks to arrange.
        memory: Bytes of each.
        step: What a step is.

    Raises:
        ConfigError: If the model cannot be trained in any layout.
    """
    sizes = model_sizes(model, plan, sequence_length=step.sequence_length)
    stored = sum(
        one.numel() * _TRAINED_BYTES if one.requires_grad else one.nbytes for one in model.parameters()
    )
    found, activations = Search(), 0.0

    def least(layout: MeshLayout) -> float:
        return _stored(stored, layout) + activations / _num_parts(layout)

    layouts = [one for one in _layouts(num_ranks, step) if not broken_rules(one, model=sizes)]
    layouts.sort(key=lambda one: (_num_parts(one), one.pp, one.cp, one.num_param_shards))
    if layouts and not any(least(one) <= memory for one in layouts):
        memory = int(min(map(least, layouts)))  # for the closest
    for layout in layouts:
        shared = MeshLayout(pp=layout.pp, cp=layout.cp, tp=layout.tp)
        if len(found.proposals) == _MOST_PREPARED or shared in found.failed:
            continue
        if least(layout) > memory:
            found.num_skipped += 1
            continue
        try:
            proposal = _prepared(model, plan, layout, step)
        except ConfigError as error:
            if shared.world_size == 1:  # so will all others
                raise
            found.failed[shared] = str(error)
            continue
        found.proposals.append(proposal)
        beside = (proposal.num_bytes - _stored(stored, layout)) * _num_parts(layout)
        activations = max(activations, beside)
    found.proposals.sort(key=lambda one: (one.sent_per_sequence, one.num_bytes))
    return found


def _prepared(model: nn.Module, plan: ParallelPlan, layout: MeshLayout, step: Step) -> Proposal:
    stages = planned_step(model, plan, layout, step)
    num_sequences = layout.num_data_ranks * step.batch_size
    moved: dict[str, float] = {}
    for stage in stages:
        for axes, size in stage.moved.items():
            sent = size * layout.world_size / layout.pp / num_sequences
            moved[axes] = moved.get(axes, 0.0) + sent
    return Proposal(layout, max(stage.total for stage in stages), moved)


def _num_parts(layout: MeshLayout) -> int:
    """Return how many ranks share the activations of a batch, at most."""
    return layout.tp * layout.cp * layout.pp


def _stored(num_bytes: int, layout: MeshLayout) -> float:
    return num_bytes / (layout.num_param_shards * layout.tp * layout.pp)


def _layouts(num_ranks: int, step: Step) -> Iterator[MeshLayout]:
    few = [number for number in range(1, min(num_ranks, _MOST) + 1) if num_ranks % number == 0]
    parts = [part for part in few if part == 1 or (step.sequence_length or 0) // part >= _LEAST_TOKENS]
    stages = [number for number in few if number <= step.batch_size]
    for tp, pp, cp in product(few, stages, parts):
        rest, left = divmod(num_ranks, tp * pp * cp)
        if not left:
            for copies in range(1, rest + 1):
                if rest % copies == 0:
                    yield MeshLayout(pp=pp, dp_replicate=copies, dp_shard=rest // copies, cp=cp, tp=tp)
