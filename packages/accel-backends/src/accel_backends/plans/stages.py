"""Pipeline stages of a model: its blocks, the blocks with which stages begin, and the stages of each tensor."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from accel_backends.plans.model_names import ModelNames, NamedModule, joined, nearest
from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.repeated_blocks import (
    after_blocks,
    final_head,
    final_norm,
    find_blocks,
    input_embedding,
)
from accel_ops.named_tensors import NamedTensor, walk_modules
from accel_state.errors import ConfigError

_HANDED_ON = ("position_bias", "encoder_hidden_states", "encoder_decoder_position_bias")
"""Arguments of blocks of transformers that an earlier block or the encoder computes."""
MOST_KINDS = 8
"""Classes of blocks that are distinguished; any others count as the last one."""
_FRONT = -1
"""In place of the number of a block: before the first one."""


@dataclass(frozen=True, slots=True)
class StageBlock:
    """A block of a model, which runs in one stage.

    Attributes:
        name: Its name in ``model.named_modules()``.
        stage: Its stage.
        kind: A number of its class among those of all blocks; blocks of one kind return equally many values.
        arguments: The names of the positional arguments of its forward.
        handed_on: Of these, the arguments that a stage receives if it begins with this block.
    """

    name: str
    stage: int
    kind: int
    arguments: tuple[str, ...]
    handed_on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one model.

    Attributes:
        num_stages: How many there are.
        blocks: The blocks by module, in the order in which the forward calls them.
        starts: The names of the blocks with which stages begin, from the second stage on.
        ends: Layers outside of the blocks that not every stage computes with: name to stages.
        of_module: The same for ends and blocks together, under all of their names.
    """

    num_stages: int
    blocks: Mapping[nn.Module, StageBlock]
    starts: tuple[str, ...]
    ends: Mapping[str, frozenset[int]]
    of_module: Mapping[str, frozenset[int]]

    def of(self, found: NamedTensor) -> frozenset[int]:
        """Return the stages of a parameter or buffer: every stage if it is in no block and no layer of the ends."""
        return frozenset[int]().union(*map(self._of_name, found.names))

    def _of_name(self, name: str) -> frozenset[int]:
        while name := name.rpartition(".")[0]:
            if name in self.of_module:
                return self.of_module[name]
        return frozenset(range(self.num_stages))


def stages_of(
    model: nn.Module,
    plan: ParallelPlan,
    num_stages: int,
    *,
    split_points: Sequence[str] | None = None,
    no_split_module_classes: Collection[str] = (),
) -> Stages:
    """Return the stages of ``model``, for the smallest largest stage or as ``split_points`` says.

    Blocks are those that ``stages`` of the plan names, or those that the model repeats, or the members of its largest
    list or `torch.nn.Sequential`. Layers before, between and after them belong to the stage that the order of the
    modules suggests; everything else to every stage.

    Args:
        model: On any device, before it is transformed; it stays as it is.
        plan: From `resolve_plan`.
        num_stages: How many stages.
        split_points: The blocks with which stages begin, from the second on; None balances the stages.
        no_split_module_classes: Names of classes that are one block each, as the units of the plan are.

    Raises:
        ConfigError: If the model has too few blocks, or stages cannot begin there.
    """
    names = ModelNames(model)
    repeated = _blocks(names, plan, no_split_module_classes)
    after = (
        [one for one in after_blocks(names, repeated) if not isinstance(one.module, nn.Embedding)]
        if repeated
        else []
    )
    # They are given what a block returns, so a stage can begin with them.
    behind = [one for one in (final_norm(after), final_head(after)) if one and one.is_leaf]
    found = list(dict.fromkeys([*repeated, *behind]))
    blocks = {model.get_submodule(named.path): named for named in found}
    # Without a head, the logits may be computed with the weight of the embedding.
    embedding = None if final_head(after) is not None else input_embedding(names, repeated)
    ends = _ends(model, list(blocks), plan.tail, num_repeated=len(repeated), embedding=embedding)
    paths = [named.path for named in found]
    has_front = any(number == _FRONT for numbers in ends.values() for number in numbers)
    if split_points is None:
        sizes = [0, *(named.num_parameters for named in found)]
        for name, numbers in ends.items():
            for number in numbers:
                sizes[1 + number] += sum(one.numel() for one in model.get_submodule(name).parameters())
        parts = list(zip(["", *paths], sizes, strict=True))
        split_points = _balanced(type(model).__name__, parts[0 if has_front and found else 1 :], num_stages)
    else:
        _check_split_points(model, split_points, paths[0 if has_front else 1 :])
    begins = [paths.index(name) for name in split_points]
    stages = {number: sum(one <= number for one in begins) for number in range(_FRONT, len(paths))}
    kinds = list(dict.fromkeys(type(named.module) for named in found))
    block_of = {
        module: _block(
            named, plan.stages.get(named.path), stage, min(kinds.index(type(named.module)), MOST_KINDS - 1)
        )
        for (module, named), stage in zip(blocks.items(), [*stages.values()][1:], strict=True)
    }
    of_end = {name: frozenset(stages[number] for number in numbers) for name, numbers in ends.items()}
    of_block = {
        name: frozenset({block_of[one].stage}) for name, one in walk_modules(model) if one in block_of
    }
    return Stages(num_stages, block_of, tuple(split_points), of_end, {**of_end, **of_block})


def _block(named: NamedModule, given: Sequence[str] | None, stage: int, kind: int) -> StageBlock:
    parameters = [*inspect.signature(type(named.module).forward).parameters.values()][1:]
    positional = tuple(one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD)
    more = given or [one for one in _HANDED_ON if one in positional]
    unknown = [one for one in more if one not in {parameter.name for parameter in parameters}]
    if unknown:
        raise ConfigError(
            f"`stages` of the plan sends `{unknown[0]}`, which is no argument of the forward of `{named.name}`. Its "
            f"arguments are: {', '.join(f'`{one.name}`' for one in parameters)}."
        )
    return StageBlock(named.path, stage, kind, positional, tuple(dict.fromkeys((*positional[:1], *more))))


def _blocks(names: ModelNames, plan: ParallelPlan, no_split: Collection[str]) -> list[NamedModule]:
    if plan.stages:
        by_path = {named.path: named for named in names}
        return [by_path[path] for path in plan.stages]
    outer = [
        one
        for one in names
        if one.name and not one.is_list and (one.path in plan.units or one.class_name in no_split)
    ]
    inner = find_blocks(names.root) or _members_of_largest_list(names)
    blocks = dict.fromkeys(next((one for one in outer if block.is_inside(one)), block) for block in inner)
    return list(blocks)


def _members_of_largest_list(names: ModelNames) -> list[NamedModule]:
    lists = [one for one in names if isinstance(one.module, nn.ModuleList | nn.Sequential) and one.children]
    largest = max(lists, key=lambda one: one.num_parameters, default=None)
    return [] if largest is None else largest.children


def _ends(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    tail: Collection[str],
    *,
    num_repeated: int,
    embedding: NamedModule | None,
) -> dict[str, tuple[int, ...]]:
    """Return the layers outside of blocks whose stage is clear, each with the number of a block of the same stage.

    In other stages they are replaced by layers that compute nothing, as is possible for embeddings and linear layers.
    Other layers, those in lists, those that the model lists after its blocks, and parameters of other modules stay in
    every stage.
    """
    number_of = {block: number for number, block in enumerate(blocks)}
    ends: dict[str, tuple[int, ...]] = {}
    reached, last = _FRONT, len(blocks) - 1

    def visit(path: str, module: nn.Module) -> None:
        nonlocal reached
        if module in number_of:
            reached = max(reached, number_of[module])
        elif path in tail:
            ends[path] = (last,)
        elif _is_end(module) and reached < num_repeated - 1:
            ends[path] = (reached, last) if embedding and module is embedding.module else (reached,)
        elif not isinstance(module, nn.ModuleList | nn.ModuleDict) or any(
            one in number_of for one in module.modules()
        ):
            for key, child in module.named_children():
                visit(joined(path, key), child)

    visit("", model)
    return ends


def _is_end(module: nn.Module) -> bool:
    is_known = isinstance(module, nn.Embedding | nn.Linear)
    return is_known and bool(module._parameters) and not any(True for _ in module.children())


def _balanced(kind: str, parts: Sequence[tuple[str, int]], num_stages: int) -> list[str]:
    if len(parts) < num_stages:
        what = f"has {len(parts)} parts between which stages can begin" if parts else "repeats no blocks"
        raise ConfigError(
            f"`{kind}` {what}, but the pipeline has {num_stages} stages. Use fewer stages (`pp_size`, "
            "`stages_per_rank` or processes), or name blocks that the forward calls one after the other in the plan: "
            "`parallel_plan={'stages': {'layers.*': []}}`."
        )
    return [parts[first][0] for first in balanced_firsts([size for _, size in parts], num_stages)]


def _check_split_points(model: nn.Module, split_points: Sequence[str], order: Sequence[str]) -> None:
    modules = dict(model.named_modules())
    for name in split_points:
        if name not in modules:
            raise ConfigError(
                f"`{name}` in `split_points` is no module of `{type(model).__name__}`.{nearest(name, modules)}"
            )
        if name not in order:
            raise ConfigError(
                f"`{name}` in `split_points` is no block of `{type(model).__name__}` with which a stage can begin. "
                f"Choose among {', '.join(f'`{one}`' for one in order) or 'none'}, or name the blocks in the plan: "
                "`parallel_plan={'stages': {'layers.*': []}}`."
            )
    if list(split_points) != sorted(set(split_points), key=order.index):
        raise ConfigError(
            f"`split_points` are not in the order of the model: {list(split_points)!r}. Name each block once, in order."
        )


def balanced_firsts(sizes: Sequence[int], num_stages: int) -> list[int]:
    """Return where to split a list of sizes, so that the largest sum is as small as possible and no stage is empty.

    Returns:
        The number of the first item of each stage but the first.
    """
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(sizes, middle, 1)) < num_stages else (middle + 1, high)
    return _filled(sizes, low, num_stages)


def _filled(sizes: Sequence[int], limit: int, num_stages: int) -> list[int]:
    """Fill stages up to ``limit`` one after the other, but leave an item for each of ``num_stages``."""
    firsts: list[int] = []
    filled = 0
    for number, size in enumerate(sizes):
        is_short = len(sizes) - number < num_stages - len(firsts)
        if number and (filled + size > limit or is_short):
            firsts.append(number)
            filled = 0
        filled += size
    return firsts
