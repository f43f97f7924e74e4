"""Where a model is cut, so that its stages hold about as much each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import nn

from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.sources import resolve_plan
from accel_state.errors import ConfigError


def balanced_starts(
    model: nn.Module,
    num_stages: int,
    *,
    no_split_module_classes: Collection[str] = (),
    plan: ParallelPlan | None = None,
) -> list[str]:
    """Return the modules with which the stages begin, from the second on, for the smallest largest stage.

    Units of ``plan`` (by default the one of the model: the blocks that it repeats) and the classes named are not split.

    Raises:
        ConfigError: If the model has fewer parts than there are stages.
    """
    whole = {*(resolve_plan(model) if plan is None else plan).units}
    parts = list(_parts("", model, whole, frozenset(no_split_module_classes)))
    if len(parts) < num_stages:
        raise ConfigError(
            f"`{type(model).__name__}` has {len(parts)} parts that can be cut from each other, which is less than the "
            f"{num_stages} stages. Use fewer stages (`pp_size`, `stages_per_rank` or processes), or name modules in "
            "`split_points`."
        )
    firsts = balanced_firsts([num_bytes for _, num_bytes in parts], num_stages)
    return [parts[first][0] for first in firsts]


def balanced_firsts(sizes: Sequence[int], num_stages: int) -> list[int]:
    """Return where to cut a list of sizes, so that the largest sum is as small as can be and no stage is empty.

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


def _parts(
    name: str, module: nn.Module, whole: Collection[str], no_split: Collection[str]
) -> Iterator[tuple[str, int]]:
    """Yield the parts of a module that are not cut, and their bytes, in the order of the model."""
    num_bytes = sum(parameter.nbytes for parameter in module.parameters())
    if not num_bytes:
        return
    has_own = any(True for _ in module.parameters(recurse=False))
    children = [(key, child) for key, child in module.named_children()]
    if name and (name in whole or type(module).__name__ in no_split or has_own or not children):
        yield name, num_bytes
        return
    for key, child in children:
        yield from _parts(f"{name}.{key}" if name else key, child, whole, no_split)
