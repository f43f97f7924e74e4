"""Blocks that a model repeats, and what is before and after them: the units and the tail of a model without a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn

from accel_backends.plans.model_names import ModelNames, NamedModule


def is_repeated_blocks(module: nn.Module) -> bool:
    """Whether ``module`` is a `torch.nn.ModuleList` of blocks of one class."""
    return isinstance(module, nn.ModuleList) and len({type(block) for block in module}) == 1


def has_repeated_blocks(module: nn.Module) -> bool:
    """Whether ``module`` or something in it is a list of blocks of one class."""
    return any(is_repeated_blocks(submodule) for submodule in module.modules())


def inferred_from_blocks(names: ModelNames) -> dict[str, Any]:
    """Return units and tail of a model that repeats blocks; nothing if it repeats none.

    A model without a head may compute its logits with the weight of its input embedding, outside of that module. The
    embedding is then no unit, since the weights of a unit are only whole while the unit runs.
    """
    blocks = find_blocks(names.root)
    if not blocks:
        return {}
    layers = after_blocks(names, blocks)
    norm, head = final_norm(layers), final_head(layers)
    embedding = input_embedding(names, blocks) if head is not None else None
    found = {*blocks, embedding}
    return {
        "units": tuple(named for named in names if named in found),
        "tail": tuple(layer for layer in (norm, head) if layer is not None),
    }


def find_blocks(within: NamedModule) -> list[NamedModule]:
    """Return the blocks that a model, or a module in it, repeats, in the order of the model.

    Blocks are the members of a `torch.nn.ModuleList`, `ModuleDict` or `Sequential` whose class occurs more than once
    among them; in a list, a single member is a block too. Layers of torch are no blocks. Of blocks within blocks the
    outer ones count (experts belong to their layer), unless the outer ones are stages made of the inner ones.
    """
    own = _repeated_children(within)
    if _are_stages(own):
        own = []
    found = []
    for child in within.children:
        found += [child] if child in own else find_blocks(child)
    return found


def _repeated_children(named: NamedModule) -> list[NamedModule]:
    if not isinstance(named.module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        return []
    children = [child for child in named.children if child.num_parameters and not _is_torch_layer(child)]
    counts = Counter(type(child.module) for child in children)
    at_least = 1 if is_repeated_blocks(named.module) else 2
    return [child for child in children if counts[type(child.module)] >= at_least and not child.is_list]


def _is_torch_layer(named: NamedModule) -> bool:
    return named.is_leaf and type(named.module).__module__.startswith("torch.nn.")


def _main_list(block: NamedModule) -> NamedModule | None:
    """Return the list of repeated blocks that makes up more than half of ``block``, None if there is none."""
    named: NamedModule | None = block
    while named is not None and not _repeated_children(named):
        named = next(
            (child for child in named.children if 2 * child.num_parameters > block.num_parameters), None
        )
    return named


def _are_stages(blocks: list[NamedModule]) -> bool:
    """Whether blocks are stages of a model, such as those of a Swin transformer, and no layers with experts.

    What is in a `torch.nn.Sequential` runs one after the other, as experts do not; and the blocks of one stage are
    wider than those of another.
    """
    lists = [found for block in blocks if (found := _main_list(block)) is not None]
    if not blocks or len(lists) < len(blocks):
        return False
    in_sequence = all(isinstance(found.module, nn.Sequential) for found in lists)
    return in_sequence or len({_repeated_children(found)[0].num_parameters for found in lists}) > 1


def input_embedding(names: ModelNames, blocks: Sequence[NamedModule]) -> NamedModule | None:
    """Return the largest `torch.nn.Embedding` outside of ``blocks``, None if there is none."""
    embeddings = [
        named
        for named in names
        if isinstance(named.module, nn.Embedding) and not any(named.is_inside(block) for block in blocks)
    ]
    return max(embeddings, key=lambda named: named.num_parameters, default=None)


def after_blocks(names: ModelNames, blocks: Sequence[NamedModule]) -> list[NamedModule]:
    """Return the layers with parameters that were registered after the last block, the nearest first.

    A layer is a module without modules in it that have parameters, or a `torch.nn.Sequential`.
    """
    found: list[NamedModule] = []
    place = blocks[-1]
    while (parent := names.parent(place)) is not None:
        siblings = parent.children
        later = siblings[siblings.index(place) + 1 :] if place in siblings else []
        found += [named for named in later if _is_layer(named) and not _holds(named, blocks)]
        place = parent
    return found


def final_norm(layers: Sequence[NamedModule]) -> NamedModule | None:
    """Return the first normalisation among the layers after the blocks, None if there is none."""
    return next((layer for layer in layers if _is_norm(layer)), None)


def final_head(layers: Sequence[NamedModule]) -> NamedModule | None:
    """Return the last layer after the blocks that is no normalisation, None if there is none."""
    return next((layer for layer in reversed(layers) if "norm" not in layer.class_name.lower()), None)


def _is_layer(named: NamedModule) -> bool:
    return (
        named.num_parameters > 0
        and not named.is_list
        and (named.is_leaf or isinstance(named.module, nn.Sequential))
    )


def _is_norm(named: NamedModule) -> bool:
    return "norm" in named.class_name.lower() and named.is_leaf and not _is_of_embedding(named)


def _is_of_embedding(named: NamedModule) -> bool:
    # BART registers the normalisation of its embedding after its layers.
    return "embed" in named.name.rpartition(".")[2]


def _holds(named: NamedModule, blocks: Sequence[NamedModule]) -> bool:
    return any(block.is_inside(named) for block in blocks)
