"""Layouts of a number of ranks whose memory is enough for a model, those that send least first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import nn

from accel_backends.estimates.estimate import Step, estimate, stage_sizes
from accel_backends.estimates.forward_sizes import StageSizes
from accel_backends.plans.plan import ParallelPlan
from accel_state.errors import ConfigError
from accel_state.layout_rules import ModelSizes, broken_rules
from accel_state.mesh_layout import MeshLayout

_MOST = 8  # ranks that share layers or sequences, and stages: what one machine has
_LEAST_TOKENS = 1024  # of a sequence, for a rank that shares it


@dataclass(frozen=True, slots=True)
class Proposal:
    """A layout and what it needs.

    Attributes:
        layout: How the ranks are arranged.
        num_bytes: Memory of the rank that needs most.
        sent_per_sequence: Bytes that all ranks together send for one sequence.
    """

    layout: MeshLayout
    num_bytes: int
    sent_per_sequence: float


def proposals(
    model: nn.Module, plan: ParallelPlan, *, num_ranks: int, step: Step
) -> tuple[list[Proposal], dict[MeshLayout, str]]:
    """Return all layouts that there can be, those that send least first, and the errors of those that failed.

    An error is that of all layouts with these stages and ranks that share layers or sequences.

    Args:
        model: On any device, meta included; it stays as it is.
        plan: From `resolve_plan`.
        num_ranks: Ranks to arrange.
        step: What a step is.
    """
    sizes = model_sizes(model, plan, sequence_length=step.sequence_length)
    known: dict[MeshLayout, list[StageSizes]] = {}
    failed: dict[MeshLayout, str] = {}
    found = []
    for layout in _layouts(num_ranks, step):
        shared = MeshLayout(pp=layout.pp, cp=layout.cp, tp=layout.tp)
        if broken_rules(layout, model=sizes):
            continue
        if shared not in known and shared not in failed:
            try:
                estimate(model, plan, MeshLayout(pp=layout.pp, tp=layout.tp), Step())
                known[shared] = stage_sizes(model, plan, layout, step)
            except ConfigError as error:
                if shared.world_size == 1:  # so will all others
                    raise
                failed[shared] = str(error)
        if shared in known:
            found.append(_proposal(model, plan, layout, step, known[shared]))
    return sorted(found, key=lambda one: (one.sent_per_sequence, one.num_bytes)), failed


def _proposal(
    model: nn.Module, plan: ParallelPlan, layout: MeshLayout, step: Step, sizes: list[StageSizes]
) -> Proposal:
    stages = estimate(model, plan, layout, step, sizes=sizes)
    sent = sum(stage.bytes_sent for stage in stages) * layout.world_size / layout.pp
    return Proposal(
        layout, max(stage.total for stage in stages), sent / (layout.num_data_ranks * step.batch_size)
    )


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


def model_sizes(model: nn.Module, plan: ParallelPlan, *, sequence_length: int | None = None) -> ModelSizes:
    """Return the sizes that the config of a model of transformers tells; of other models, the number of blocks.

    Args:
        model: The model.
        plan: From `resolve_plan`.
        sequence_length: Tokens of a sequence.
    """
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    experts = getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None)
    return ModelSizes(
        num_heads=getattr(text, "num_attention_heads", None),
        num_key_value_heads=getattr(text, "num_key_value_heads", None),
        num_blocks=getattr(text, "num_hidden_layers", None) or len(plan.units) or None,
        num_experts=experts,
        sequence_length=sequence_length,
    )
