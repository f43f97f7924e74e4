"""What the ranks of a layout need for one step of training: memory and communication, computed from a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import torch
from torch import nn

from accel_backends.estimates.communication import Collective, step_collectives
from accel_backends.estimates.forward_sizes import StageSizes, forward_sizes
from accel_backends.estimates.memory import PlannedModel, plan_memory
from accel_backends.estimates.stages import (
    Users,
    actions_of,
    most_kept,
    num_forward,
    stage_of_model,
    users_in,
)
from accel_backends.pipeline.chunks import num_micro_batches
from accel_backends.pipeline.schedules import Action
from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.stages import stages_of
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step trains on, and how.

    Attributes:
        batch_size: Sequences of each rank that reads data.
        sequence_length: Tokens of a sequence; None: activations, and what is sent between layers, are left out.
        is_checkpointed: Whether units compute their activations again in the backward pass.
        dtype: What ranks compute in, where that is not what they store.
        has_ring: With `cp`, keys and values are gathered twice (``cp_comm_strategy`` ``alltoall``).
        num_micro_batches: Parts of a batch in a pipeline; None: as many as a run takes by itself.
        schedule: In which order these pass through a pipeline with one stage for each rank.
    """

    batch_size: int = 1
    sequence_length: int | None = None
    is_checkpointed: bool = False
    dtype: torch.dtype | None = None
    has_ring: bool = False
    num_micro_batches: int | None = None
    schedule: str = "1f1b"

    def num_parts(self, num_stages: int) -> int:
        """Return in how many micro-batches a batch passes through so many stages."""
        if num_stages == 1:
            return 1
        return num_micro_batches(self.batch_size, num_stages=num_stages, wanted=self.num_micro_batches)

    def actions(self, *, stage: int, num_stages: int) -> Sequence[Action]:
        """Return what the ranks of a stage do."""
        return actions_of(
            self.schedule,
            stage=stage,
            num_stages=num_stages,
            num_micro_batches=self.num_parts(num_stages),
        )


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """One pipeline stage; without a pipeline the whole model.

    Attributes:
        planned: Its units, and what each rank holds of them.
        memory: Bytes of the rank that holds most, by what they are for.
        collectives: What each of its ranks takes part in during a step, and how often.
    """

    planned: PlannedModel
    memory: Mapping[str, int]
    collectives: Counter[Collective] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All bytes of the rank that holds most."""
        return sum(self.memory.values())

    @property
    def bytes_sent(self) -> float:
        """Bytes that each rank sends in a step, if collectives run in a ring."""
        return sum(_sent(one) * count for one, count in self.collectives.items())


def estimate(
    model: nn.Module,
    plan: ParallelPlan,
    layout: MeshLayout,
    step: Step,
    *,
    sizes: list[StageSizes] | None = None,
) -> list[StageEstimate]:
    """Return what each stage of ``model`` needs if its ranks are arranged by ``layout``.

    Args:
        model: On any device, meta included; it stays as it is.
        plan: From `resolve_plan`.
        layout: How the ranks are arranged.
        step: What a step is.
        sizes: From `stage_sizes`, where they are known already.

    Raises:
        ConfigError: If the model cannot be arranged so.
    """
    whole = plan_memory(
        model,
        plan,
        num_shards=layout.num_param_shards,
        num_replicas=layout.dp_replicate,
        num_sharing=layout.tp,
        num_expert_ranks=layout.ep,
    )
    if sizes is None:
        sizes = stage_sizes(model, plan, layout, step)
    stages, users = [whole], Users()
    if layout.pp > 1:
        users = users_in(model, stages_of(model, plan, layout.pp))
        stages = [stage_of_model(model, whole, users, number) for number in range(layout.pp)]
    estimates = []
    for number, (planned, found) in enumerate(zip(stages, sizes, strict=True)):
        actions = step.actions(stage=number, num_stages=layout.pp)
        memory = _memory(
            planned, found, step, num_held=most_kept(actions), num_parts=step.num_parts(layout.pp)
        )
        collectives = _collectives(planned, layout, found, step, actions, sizes[number + 1 :])
        collectives += _sums_of_shared(planned, users, number)
        estimates.append(StageEstimate(planned, memory, collectives))
    return estimates


def stage_sizes(model: nn.Module, plan: ParallelPlan, layout: MeshLayout, step: Step) -> list[StageSizes]:
    """Return what a micro-batch keeps and sends in each stage; copies and shards of the model do not matter.

    Raises:
        ConfigError: If the model cannot be run so.
    """
    if step.sequence_length is None:
        return [StageSizes() for _ in range(layout.pp)]
    return forward_sizes(
        model,
        plan,
        batch_size=ceil(step.batch_size / step.num_parts(layout.pp)),
        sequence_length=_part_of_sequence(layout, step.sequence_length),
        layout=layout,
        dtype=step.dtype,
        starts=stages_of(model, plan, layout.pp).starts if layout.pp > 1 else (),
        has_ring=step.has_ring,
    )


def _part_of_sequence(layout: MeshLayout, length: int) -> int:
    num_parts = layout.cp * layout.sp
    if length % num_parts:
        raise ConfigError(
            f"`--sequence_length` {length} cannot be cut over {num_parts} ranks. Choose a multiple of {num_parts}."
        )
    return length // num_parts


def _memory(
    planned: PlannedModel, sizes: StageSizes, step: Step, *, num_held: int, num_parts: int
) -> dict[str, int]:
    """Return the bytes of the rank that holds most; ``num_held`` micro-batches are under way at a time (1F1B)."""
    held = planned.largest
    parts = {
        "parameters": held.parameters,
        "gradients": held.gradients,
        "optimizer states (AdamW)": held.optimizer,
        "buffers": planned.buffer_bytes,
        "gathered units": _gathered(planned, step.dtype),
    }
    if planned.num_shards > 1 and num_parts > 1:  # they are reduced after the last micro-batch
        parts["unsharded gradients"] = planned.unsharded_gradient_bytes
    if step.sequence_length is not None:
        parts["activations"] = num_held * (sizes.checkpointed if step.is_checkpointed else sizes.saved)
    return parts


def _gathered(planned: PlannedModel, dtype: torch.dtype | None) -> int:
    """Return the bytes of whole parameters at a time; where nothing is cut or cast, they are the parameters."""
    if planned.num_shards == 1 and dtype is None:
        return 0
    if dtype is None:
        return planned.gathered_bytes
    return planned.gathered_bytes * dtype.itemsize // torch.float32.itemsize


def _collectives(
    planned: PlannedModel,
    layout: MeshLayout,
    sizes: StageSizes,
    step: Step,
    actions: Sequence[Action],
    later: Sequence[StageSizes],
) -> Counter[Collective]:
    found = step_collectives(
        planned,
        layout,
        sizes=sizes,
        is_checkpointed=step.is_checkpointed,
        element_bytes=None if step.dtype is None else step.dtype.itemsize,
        actions=actions,
    )
    handed = [sizes.received, *(one.received for one in later[:1])]
    for num_bytes in filter(None, handed):  # forward from one stage to the next, gradients back
        found[Collective("send", ("pp",), 2, num_bytes)] += num_forward(actions)
    return found


def _sums_of_shared(planned: PlannedModel, users: Users, number: int) -> Counter[Collective]:
    """Return how often a stage sends gradients of parameters of several stages, which the first of these adds up."""
    found: Counter[Collective] = Counter()
    for parameter in (one for unit in planned.units for one in unit.parameters):
        stages = users.get(parameter.name, ())
        if len(stages) > 1 and parameter.is_trainable:
            num_bytes = parameter.bytes_on(0).gradients
            found[Collective("send", ("pp",), 2, num_bytes)] += (
                len(stages) - 1 if number == min(stages) else 1
            )
    return found


def _sent(one: Collective) -> float:
    if one.kind == "send":
        return one.num_bytes
    passes = 2 if one.kind == "all_reduce" else 1
    return passes * one.num_bytes * (one.num_ranks - 1) / one.num_ranks
