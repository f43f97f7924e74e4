"""What the ranks of a run send each other in one step of training: computed from a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accel_backends.estimates.forward_sizes import StageSizes
from accel_backends.estimates.memory import PlannedModel, PlannedParameter, PlannedUnit
from accel_backends.estimates.stages import ONE_BATCH, num_forward, num_gathers
from accel_backends.pipeline.schedules import Action
from accel_state.mesh_layout import SHARD_AXES, MeshLayout

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """Collectives of one rank that are alike.

    Attributes:
        kind: ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``all_to_all`` or ``send``.
        axes: The axes of the layout along which the ranks of a group differ.
        num_ranks: Ranks of a group.
        num_bytes: Of the whole tensor: what an all-gather returns, what the others take.
    """

    kind: str
    axes: tuple[str, ...]
    num_ranks: int
    num_bytes: int


def step_collectives(
    planned: PlannedModel,
    layout: MeshLayout,
    *,
    sizes: StageSizes | None = None,
    reshards: bool = True,
    is_checkpointed: bool = False,
    element_bytes: int | None = None,
    actions: Sequence[Action] = ONE_BATCH,
) -> Counter[Collective]:
    """Return how often a rank takes part in which collective, in forward, backward and step for one batch.

    Groups of one rank are left out, as are the norm of gradients (one all-reduce of 8 bytes for each axis that cuts),
    and padding masks and positions of sequences that ranks share.

    Args:
        planned: The model, or one stage of it.
        layout: How the ranks are arranged.
        sizes: Of the forward pass; without them, what is sent in it and in the backward pass is left out.
        reshards: Whether units are gathered again for the backward pass (``reshard_after_forward``).
        is_checkpointed: Whether units compute their activations again in the backward pass.
        element_bytes: Of an element in computation, where that is not the type that is stored; gradients are reduced
            in fp32 then.
        actions: What the rank does with the parts of the batch; sharded gradients are reduced after the last part.
    """
    found: Counter[Collective] = Counter()
    num_passes = num_forward(actions)

    def add(kind: str, axes: Iterable[str], num_bytes: int, count: int = 1) -> None:
        present = tuple(axis for axis in axes if layout.size(axis) > 1)
        if present and num_bytes:
            found[Collective(kind, present, layout.size(*present), num_bytes)] += count

    sharded: Counter[tuple[str, ...]] = Counter()
    for unit in planned.units:
        has_experts = any(one.num_expert_ranks > 1 for one in unit.parameters)
        axes = ("edp_shard",) if has_experts else SHARD_AXES
        sharded[axes] += sum(one.is_sharded for one in unit.parameters)
        num_shards = layout.size(*axes)
        is_kept = unit.is_tail or unit.is_root or not reshards
        add(
            "all_gather",
            axes,
            num_shards * _part(unit, element_bytes),
            num_gathers(actions, is_kept=is_kept),
        )
        reduced = _part(unit, _FP32_BYTES if element_bytes else None, trained_only=True)
        add("reduce_scatter", axes, num_shards * reduced)
        add("all_reduce", ("dp_replicate",), reduced)
    is_trained = any(one.is_trainable for unit in planned.units for one in unit.parameters)
    # Which parameters the ranks have used: a number for each.
    for shards, number in sharded.items() if is_trained else ():
        add("all_reduce", ("dp_replicate",), _FP32_BYTES * number)
        add("all_reduce", shards, _FP32_BYTES * number)
    replicated = [one for unit in planned.units for one in unit.parameters if not one.is_sharded]
    packed = sum(one.gathered + one.element_bytes for one in replicated if one.is_trainable)
    add("all_reduce", ("dp_replicate",), packed)
    add("all_reduce", SHARD_AXES, packed)
    for message in sizes.messages if sizes is not None else ():
        add(
            message.kind,
            message.axes,
            message.num_bytes,
            num_passes * (1 + (is_checkpointed and message.is_repeated)),
        )
    return found


def _part(unit: PlannedUnit, element_bytes: int | None, *, trained_only: bool = False) -> int:
    """Return the bytes that each rank sends of a unit: those of the first rank, since collectives want them alike."""

    def size(parameter: PlannedParameter) -> int:
        held = parameter.bytes_on(0).parameters
        return held if element_bytes is None else held // parameter.element_bytes * element_bytes

    return sum(
        size(parameter)
        for parameter in unit.parameters
        if parameter.is_sharded and (parameter.is_trainable or not trained_only)
    )
