"""What stands before and after the blocks of a model: input embedding, final norm, head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from accel_backends.plans.model_names import ModelNames, NamedModule


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
        siblings = names.children(parent)
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
