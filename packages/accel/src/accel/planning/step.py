"""A step of training on one rank of a layout: the real engine, run without the other ranks and without values."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from accel.accelerator import Accelerator
from accel.planning.collectives import Counted, counted_collectives
from accel.planning.without_values import Memory, no_values, rank_alone, without_memory
from accel_backends.expert_parallel.parallel import expert_modules
from accel_backends.fsdp.groups import ShardGroup, shard_groups, tensors_of_groups
from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.stages import stages_of
from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin
from accel_ops.named_tensors import NamedTensor, named_tensors
from accel_ops.nested.describe import iterate_tensors
from accel_state.errors import ConfigError
from accel_state.layout_rules import ModelSizes
from accel_state.mesh_layout import AXES, MeshLayout
from accel_state.parallelism_config import ParallelismConfig
from accel_state.parallelism_handlers import (
    PipelineParallelConfig,
    PipelineSchedule,
    TorchContextParallelConfig,
)

_MOMENTS = 2  # running averages that AdamW keeps of each gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step trains on, and how.

    Attributes:
        batch_size: Sequences of each rank that reads data.
        sequence_length: Tokens of a sequence; None: nothing is run, and only what is stored is known.
        is_checkpointed: Whether units compute their activations again in the backward pass.
        mixed_precision: That of the `Accelerator`.
        cp_comm_strategy: What `cp` ranks exchange: that of `TorchContextParallelConfig`.
        schedule: In which order micro-batches pass through a pipeline.
    """

    batch_size: int = 1
    sequence_length: int | None = None
    is_checkpointed: bool = False
    mixed_precision: str = "no"
    cp_comm_strategy: Literal["allgather", "alltoall"] = "allgather"
    schedule: PipelineSchedule = "1f1b"

    def settings(self, layout: MeshLayout, plan: ParallelPlan) -> dict[str, Any]:
        """Return the arguments of an `Accelerator` that trains so."""
        sizes: dict[str, Any] = {
            f"{axis}_size": size for axis, size in {**layout.sizes, "ep": layout.ep}.items()
        }
        return {
            "mixed_precision": self.mixed_precision,
            "fsdp_plugin": FullyShardedDataParallelPlugin(
                fsdp_version=2,
                activation_checkpointing=self.is_checkpointed,
                parallel_plan=plan,
            ),
            "parallelism_config": ParallelismConfig(
                **sizes,
                sp_backend="torch",
                cp_handler=TorchContextParallelConfig(cp_comm_strategy=self.cp_comm_strategy)
                if layout.cp > 1
                else None,
                pp_handler=PipelineParallelConfig(self.schedule) if layout.pp > 1 else None,
            ),
        }


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """Collectives of one rank that are alike.

    Attributes:
        kind: ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``all_to_all``, ``broadcast`` or ``send``.
        axes: The axes of the layout along which the ranks of a group differ.
        num_ranks: Ranks of a group.
        num_bytes: Of the whole tensor: what an all-gather returns, what the others take.
    """

    kind: str
    axes: tuple[str, ...]
    num_ranks: int
    num_bytes: int

    @property
    def num_sent(self) -> float:
        """Bytes that each rank sends, if collectives run in a ring."""
        if self.kind in ("send", "broadcast"):
            return self.num_bytes
        passes = 2 if self.kind == "all_reduce" else 1
        return passes * self.num_bytes * (self.num_ranks - 1) / self.num_ranks


@dataclass(frozen=True, slots=True)
class StoredParameter:
    """A parameter as the engine stores it on a rank.

    Attributes:
        name: Its first name in the model.
        shape: Its whole shape.
        placement: How the ranks share it, in torch's words.
        is_trainable: Whether it has a gradient.
        num_bytes: Of the whole.
        num_local: Bytes on this rank.
    """

    name: str
    shape: tuple[int, ...]
    placement: str
    is_trainable: bool
    num_bytes: int
    num_local: int


@dataclass(frozen=True, slots=True)
class StoredUnit:
    """Parameters that are gathered together; the modules of the unit, and whether they run last."""

    modules: tuple[str, ...]
    is_tail: bool
    parameters: tuple[StoredParameter, ...]


@dataclass(frozen=True, slots=True)
class StageReport:
    """One pipeline stage; without a pipeline the whole model.

    Attributes:
        units: What its first rank, which has most, stores, in the order of the model.
        memory: Bytes at the time when there are most, by what they are for.
        collectives: What the rank takes part in during a step, and how often.
    """

    units: tuple[StoredUnit, ...]
    memory: Mapping[str, int]
    collectives: Counter[Collective] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All bytes of the rank."""
        return sum(self.memory.values())

    @property
    def moved(self) -> dict[str, float]:
        """Bytes that the rank sends in a step, by the axes along which it sends them."""
        found: Counter[str] = Counter()
        for one, count in self.collectives.items():
            found[" × ".join(one.axes)] += one.num_sent * count  # type: ignore[assignment]
        return dict(found)


def planned_step(model: nn.Module, plan: ParallelPlan, layout: MeshLayout, step: Step) -> list[StageReport]:
    """Return what the first rank of each stage stores, needs and sends.

    Args:
        model: On the meta device; it stays as it is.
        plan: From `resolve_plan`.
        layout: How the ranks are arranged.
        step: What a step is.

    Raises:
        ConfigError: If the model cannot be arranged or run so.
    """
    if layout.pp > 1 and step.sequence_length is not None:
        # What stands for the values of another stage is a kind of tensor, of which torch has no fake one.
        raise ConfigError(
            "A pipeline (`--pp_size`) cannot run a step without values. Leave out `--sequence_length` to see what "
            "each stage stores."
        )
    reports: list[StageReport] = []
    for stage in range(layout.pp):
        rank = stage * layout.world_size // layout.pp
        with rank_alone(rank, layout.world_size):
            # Groups and meshes, whose ranks are numbers with values, are made before tensors have none.
            accelerator = Accelerator(cpu=True, **step.settings(layout, plan))
            own = deepcopy(model)
            with no_values():
                reports.append(_stage(accelerator, own, plan, layout, step, stage))
    return reports


def _stage(
    accelerator: Accelerator, model: nn.Module, plan: ParallelPlan, layout: MeshLayout, step: Step, stage: int
) -> StageReport:
    without_memory(model.train())
    experts = expert_modules(model, plan, num_ranks=layout.ep) if layout.ep > 1 else ()
    groups = _groups(model, plan, tuple(experts))
    held = {found.names[0] for found in named_tensors(model)}
    if layout.pp > 1:  # until the first batch, something stands for what other stages have
        stages = stages_of(model, plan, layout.pp)
        held = {found.names[0] for found in named_tensors(model) if stage in stages.of(found)}
    optimizer: Any
    trained = [one for one in model.parameters() if one.requires_grad]
    if trained:
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(trained, fused=True))
    else:
        model, optimizer = accelerator.prepare(model), None
    memory = {"parameters": 0, "gradients": 0, "optimizer states (AdamW)": 0, "buffers": 0}
    collectives: Counter[Collective] = Counter()
    if step.sequence_length is not None:
        tokens = torch.zeros(step.batch_size, step.sequence_length, dtype=torch.long)
        run = partial(train_once, accelerator, model, optimizer, tokens, layout)
        memory, counted = measured(run, model, optimizer)
        collectives = _of_axes(counted, layout)
    stored = {found.names[0]: found for found in named_tensors(model) if found.names[0] in held}
    units = _units(groups, stored)
    if step.sequence_length is None:
        local = [(one.is_trainable, one.num_local) for unit in units for one in unit.parameters]
        trainable = sum(size for is_trainable, size in local if is_trainable)
        memory = {
            "parameters": sum(size for _, size in local),
            "gradients": trainable,
            "optimizer states (AdamW)": _MOMENTS * trainable,
            "buffers": sum(found.tensor.nbytes for found in stored.values() if not found.is_parameter),
        }
    return StageReport(units, memory, collectives)


def measured(run: Callable[[], None], model: nn.Module, optimizer: Any) -> tuple[dict[str, int], Counted]:
    """Return the most memory of a step after the first, by what it is for, and its collectives.

    The first step makes the states of the optimizer.
    """
    run()
    memory = Memory()
    memory.track_external(model, *([] if optimizer is None else [optimizer.optimizer]))
    with counted_collectives() as counted, memory:
        run()
    peak = memory.peak()
    names = {
        "parameters": "Parameter",
        "gradients": "Gradient",
        "optimizer states (AdamW)": "Optstate",
        "buffers": "Buffer",
        "activations": "Activation",
        "temporary": "Temp",
    }
    parts = {name: peak[kind] for name, kind in names.items()}
    parts["temporary"] += peak["Total"] - sum(parts.values())
    return parts, counted


def train_once(
    accelerator: Accelerator, model: nn.Module, optimizer: Any, tokens: torch.Tensor, layout: MeshLayout
) -> None:
    """Run a step on tokens ``(batch, length)``, int64 on the CPU, as a user would. Every rank must call it."""
    tokens = tokens.clone()  # which are cut in place
    parts: AbstractContextManager[object] = nullcontext()
    if layout.cp * layout.sp > 1:
        parts = accelerator.maybe_context_parallel([tokens], [1], {tokens})
    with parts:
        accelerator.forward_backward(model, tokens, loss_of)
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss of a model that takes labels; of others, the cross entropy over what they return first.

    Args:
        model: Prepared or not.
        tokens: ``(batch, length)``, on the device of the model.

    Raises:
        ConfigError: If the model cannot run on tokens alone.
    """
    parameters = inspect.signature(model.forward).parameters
    others = {name: tokens for name in ("labels", "decoder_input_ids") if name in parameters}
    try:
        outputs = model(tokens, **others)
        if "labels" in parameters:
            loss: torch.Tensor = outputs["loss"]
            return loss
        logits = next(iter(iterate_tensors(outputs)))
        return nn.functional.cross_entropy(logits.float().flatten(0, -2), tokens.flatten())
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        kind = type(model).__name__.removeprefix("FSDP")  # of `fully_shard`
        raise ConfigError(
            f"The {kind} cannot run on tokens alone, so its activations cannot be estimated "
            f"({type(error).__name__}: {str(error).strip()}). Leave out `--sequence_length`."
        ) from error


def _groups(
    model: nn.Module, plan: ParallelPlan, experts: Sequence[str]
) -> list[tuple[ShardGroup, list[str]]]:
    """Return the units in the order of the model, the tail and the root last, with the names of their parameters."""
    parameters = [found for found in named_tensors(model) if found.is_parameter]
    groups = shard_groups(model, parameters, units=plan.units, tail=plan.tail, experts=experts)
    of_group = tensors_of_groups(parameters, groups)
    order = {name: at for at, name in enumerate(dict(model.named_modules(remove_duplicate=False)))}
    found = [
        (group, [one.names[0] for one in held]) for group, held in zip(groups, of_group, strict=True) if held
    ]
    return sorted(found, key=lambda pair: ("" in pair[0].modules, pair[0].is_tail, order[pair[0].modules[0]]))


def _units(
    groups: Sequence[tuple[ShardGroup, list[str]]], stored: Mapping[str, NamedTensor]
) -> tuple[StoredUnit, ...]:
    units = (
        StoredUnit(
            group.modules, group.is_tail, tuple(_stored(stored[name]) for name in names if name in stored)
        )
        for group, names in groups
    )
    return tuple(unit for unit in units if unit.parameters)


def _stored(found: NamedTensor) -> StoredParameter:
    tensor: Any = found.tensor
    is_cut = isinstance(tensor, DTensor)
    return StoredParameter(
        found.names[0],
        tuple(tensor.shape),
        ", ".join(map(_placement, tensor.placements)) if is_cut else "whole",
        tensor.requires_grad,
        tensor.numel() * tensor.element_size(),
        (tensor.to_local() if is_cut else tensor).nbytes,
    )


def _placement(placement: Any) -> str:
    return f"Shard({placement.dim})" if hasattr(placement, "dim") else type(placement).__name__


def _of_axes(counted: Counted, layout: MeshLayout) -> Counter[Collective]:
    """Return collectives by axes in place of ranks; what is received is what another rank sends."""
    found: Counter[Collective] = Counter()
    for (kind, ranks, size), count in counted.items():
        if kind == "receive" or not size:
            continue
        axes = ("ep",) if kind == "all_to_all" and layout.ep == len(ranks) else _axes_of(ranks, layout)
        found[Collective(kind, axes, 2 if kind == "send" else len(ranks), size)] += count
    return found


def _axes_of(ranks: tuple[int, ...], layout: MeshLayout) -> tuple[str, ...]:
    places = [layout.coordinate(one) for one in ranks]
    axes = tuple(axis for axis in AXES if len({place[axis] for place in places}) > 1)
    if layout.ep == 1 or layout.size(*axes) == len(ranks):
        return axes
    return next((axis,) for axis in ("ep", "edp_shard") if layout.group_of(ranks[0], axis) == ranks)


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
