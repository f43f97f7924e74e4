"""Where the parameters of an engine lie in the flat tensors that its optimizer steps.

DeepSpeed steps one flat fp32 tensor for each group of parameters, of which a rank holds a part. Its functions for
single parameters, such as `safe_get_full_optimizer_state`, fail before the first step and after a load; so the places
of the parameters are taken from its optimizers. This is the one file that knows their attributes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.strategies.deepspeed.checkpoints.states import part_of
from accel_backends.strategies.deepspeed.layer_cuts import LayerCut, cuts_of
from accel_checkpoint.tensors import fetched
from accel_state.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of one parameter.

    Attributes:
        start: Where it begins in the flat tensor.
        offset: Where it begins in the parameter, flattened; in its part of it where ranks share layers.
        numel: How many values it has.
    """

    start: int
    offset: int
    numel: int


@dataclass(frozen=True)
class FlatGroup:
    """Parameters whose fp32 values lie in one flat tensor.

    Attributes:
        flat: This rank's part of the values: the key of its state in the optimizer.
        number: Which parameter group of the optimizer they belong to.
        shapes: The shape of each whole parameter, by its name in the model.
        parts: What this rank holds, by name; a parameter of which it holds nothing is missing.
        ranks: The process group that shares the values; None if every rank has all of them.
        device: Where values are gathered.
        cuts: How ranks share the parameters that are parts of layers, by name.
    """

    flat: torch.Tensor
    number: int
    shapes: Mapping[str, torch.Size]
    parts: Mapping[str, Part]
    ranks: Any
    device: torch.device
    cuts: Mapping[str, LayerCut] = field(default_factory=dict)

    def gathered(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return the whole of a parameter, or of its state, on every rank.

        Communicates where ranks share the values: all of them must call it.

        Args:
            name: The parameter.
            values: The flat tensor, or one of its shape.
        """
        cut = self.cuts.get(name)
        with self.in_memory():
            own = self._gathered_part(name, values, self.shapes[name] if cut is None else cut.own_shape)
        return own if cut is None else cut.gathered(own)

    def _gathered_part(self, name: str, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        part = self.parts.get(name)
        if self.ranks is None and part is not None:
            own = values.detach()
            return own if own.shape == shape else own.narrow(0, part.start, part.numel).view(shape)
        whole = torch.zeros(math.prod(shape), dtype=values.dtype, device=self.device)
        if part is not None:
            own = values.detach().narrow(0, part.start, part.numel)
            whole.narrow(0, part.offset, part.numel).copy_(own)
        dist.all_reduce(whole, group=self.ranks)
        return whole.view(shape)

    def put(self, name: str, values: torch.Tensor, whole: Any) -> None:
        """Copy this rank's part of a parameter, or of its state, out of the whole; nothing else of it is read.

        Args:
            name: The parameter.
            values: The flat tensor `in_memory`, or one of its shape.
            whole: A tensor, deferred or not.
        """
        part = self.parts.get(name)
        if part is None:
            return
        if name in self.cuts:
            own = self.cuts[name].own(fetched(whole)).view(-1)[part.offset : part.offset + part.numel]
        else:
            own = part_of(whole, part.offset, part.numel)
        if self.ranks is None and values.numel() == part.numel:
            values.detach().copy_(own.view(values.shape))
        else:
            values.detach().narrow(0, part.start, part.numel).copy_(own)

    def in_memory(self, *, is_changed: bool = False) -> AbstractContextManager[None]:
        """Return a context in which the flat tensor and its states are in memory; they may change if that is said."""
        return nullcontext()

    def forget_states(self) -> None:
        """Prepare for other states of the flat tensor than it had."""


@dataclass(frozen=True)
class SwappedGroup(FlatGroup):
    """Parameters whose values lie in files (NVMe), which DeepSpeed brings into its buffers one group at a time.

    Attributes:
        optimizer: The engine's, which does so.
        index: Which of its groups this is.
    """

    optimizer: Any = None
    index: int = 0

    @contextmanager
    def in_memory(self, *, is_changed: bool = False) -> Iterator[None]:
        """Read the files, and write them afterwards if ``is_changed``."""
        self.optimizer._optimizer_states_and_gradient_swap_in(self.index)
        yield
        if is_changed:
            self.optimizer._optimizer_states_and_gradient_swap_out(self.index)
        else:
            self.optimizer._release_swap_buffers(self.index)

    def forget_states(self) -> None:
        """Let DeepSpeed read no files of earlier states; it makes them anew when it writes the next."""
        key = self.flat.ds_id  # type: ignore[attr-defined]
        info = self.optimizer.optimizer_swapper.swap_params_info[key]
        del info.tensors[1:]
        info.has_state_tensors = False


def stepping_optimizer(engine: Any) -> torch.optim.Optimizer | None:
    """Return the optimizer that steps the flat tensors of an engine; None if it only evaluates."""
    optimizer = engine.optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else None


def has_swapped_states(engine: Any) -> bool:
    """Tell whether the states of the optimizer of an engine lie in files (NVMe)."""
    return bool(getattr(engine.optimizer, "swap_optimizer", False))


def has_fp32_copies(engine: Any) -> bool:
    """Whether the optimizer of an engine steps fp32 copies that every rank has: bf16 or fp16 without ZeRO."""
    return hasattr(engine.optimizer, "fp32_groups") or hasattr(engine.optimizer, "fp32_groups_flat")


def flat_groups(engine: Any) -> list[FlatGroup]:
    """Return the flat tensors that the optimizer of an engine steps, in the order of its groups.

    Raises:
        CheckpointError: If DeepSpeed's optimizer is of a kind whose parameters cannot be told apart.
    """
    optimizer, inner = engine.optimizer, stepping_optimizer(engine)
    if inner is None:
        return []
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    for attribute, groups_of in _KINDS.items():
        if hasattr(optimizer, attribute):
            return list(_whole(groups_of(optimizer, names, engine.device), engine.module))
    if optimizer is inner:
        return list(_whole(_plain_groups(inner, names, engine.device), engine.module))
    raise CheckpointError(
        f"The states of the parameters in DeepSpeed's `{type(optimizer).__name__}` cannot be told apart, so they are "
        "neither saved whole nor loaded. Use ZeRO stage 1, 2 or 3 in the DeepSpeed config."
    )


def _whole(groups: Iterator[FlatGroup], model: nn.Module) -> Iterator[FlatGroup]:
    """Yield the groups with whole parameters where ranks share layers."""
    cuts = cuts_of(model)
    for group in groups:
        own = {name: cut for name, cut in cuts.items() if name in group.shapes}
        shapes = {name: own[name].shape if name in own else shape for name, shape in group.shapes.items()}
        yield replace(group, shapes=shapes, cuts=own)


def _sharded_parameters(
    optimizer: Any, names: Mapping[int, str], device: torch.device
) -> Iterator[FlatGroup]:
    """ZeRO stage 3: each rank has an equal part of each parameter, the last filled up."""
    for index, (flat, members) in enumerate(
        zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True)
    ):
        shapes, parts, start = {}, {}, 0
        for parameter in members:
            name, size = names[id(parameter)], parameter.partition_numel()
            offset = dist.get_rank(group=parameter.ds_process_group) * size
            numel = max(0, min(size, parameter.ds_numel - offset))
            shapes[name] = torch.Size(parameter.ds_shape)
            if numel:
                parts[name] = Part(start, offset, numel)
            start += size
        number = optimizer.sub_group_to_group_id[index]
        ranks = members[0].ds_process_group
        if optimizer._swappable_optimizer_subgroup(index):
            yield SwappedGroup(flat, number, shapes, parts, ranks, device, optimizer=optimizer, index=index)
        else:
            yield FlatGroup(flat, number, shapes, parts, ranks, device)


def _partitioned_states(
    optimizer: Any, names: Mapping[int, str], device: torch.device, *, flats: str, members: str
) -> Iterator[FlatGroup]:
    """ZeRO stages 1 and 2: the parameters one after the other, in equal parts; the attributes have these names."""
    ranks = optimizer.real_dp_process_group
    groups = zip(getattr(optimizer, flats), getattr(optimizer, members), strict=True)
    for number, (flat, parameters) in enumerate(groups):
        parts = {}
        for parameter in parameters:
            here = parameter._hp_mapping  # set by DeepSpeed
            if here is not None:
                inside, outside = here.lp_fragment_address, here.hp_fragment_address
                parts[names[id(parameter)]] = Part(outside.start, inside.start, inside.numel)
        shapes = {names[id(parameter)]: parameter.shape for parameter in parameters}
        yield FlatGroup(flat, number, shapes, parts, ranks[number], device)


def _low_precision_groups(
    optimizer: Any, names: Mapping[int, str], device: torch.device
) -> Iterator[FlatGroup]:
    """Without ZeRO, in bf16 or fp16: each rank has an fp32 copy of each parameter."""
    for number, (copies, parameters) in enumerate(
        zip(optimizer.fp32_groups, optimizer.fp16_groups, strict=True)
    ):
        for copy, parameter in zip(copies, parameters, strict=True):
            yield _whole_group(copy, number, names[id(parameter)], device)


def _fused_groups(optimizer: Any, names: Mapping[int, str], device: torch.device) -> Iterator[FlatGroup]:
    """Without ZeRO, in bf16 or fp16, with DeepSpeed's fused Adam: each rank has a flat fp32 copy of each group."""
    for number, (flat, parameters) in enumerate(
        zip(optimizer.fp32_groups_flat, optimizer.fp16_groups, strict=True)
    ):
        shapes = {names[id(parameter)]: parameter.shape for parameter in parameters}
        starts = itertools.accumulate(map(math.prod, shapes.values()), initial=0)
        parts = {one: Part(at, 0, math.prod(shapes[one])) for one, at in zip(shapes, starts, strict=False)}
        yield FlatGroup(flat, number, shapes, parts, None, device)


def _plain_groups(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], device: torch.device
) -> Iterator[FlatGroup]:
    """Without ZeRO, in fp32: the parameters themselves."""
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            yield _whole_group(parameter, number, names[id(parameter)], device)


def _whole_group(values: torch.Tensor, number: int, name: str, device: torch.device) -> FlatGroup:
    part = Part(0, 0, values.numel())
    return FlatGroup(values, number, {name: values.shape}, {name: part}, None, device)


_KINDS: Mapping[str, Callable[..., Iterator[FlatGroup]]] = {
    "fp32_partitioned_groups_flat": _sharded_parameters,
    "single_partition_of_fp32_groups": partial(
        _partitioned_states, flats="single_partition_of_fp32_groups", members="bit16_groups"
    ),
    "fp32_groups_flat_partition": partial(  # stage 1 where bf16 parameters have fp32 gradients
        _partitioned_states, flats="fp32_groups_flat_partition", members="bf16_groups"
    ),
    "fp32_groups": _low_precision_groups,
    "fp32_groups_flat": _fused_groups,
}
"""The attribute by which a kind of DeepSpeed's optimizers is known, and where the parameters lie in it."""
