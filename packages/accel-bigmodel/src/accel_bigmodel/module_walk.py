"""Every module of a model with its dotted name, in one pass."""

from __future__ import annotations

from torch import nn


def walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return what ``model.named_modules(remove_duplicate=False)`` yields, for models of many thousand modules.

    There each name passes through a generator for every level that it lies deep.
    """
    found: list[tuple[str, nn.Module]] = []
    _walk("", model, found)
    return found


def _walk(name: str, module: nn.Module, found: list[tuple[str, nn.Module]]) -> None:
    found.append((name, module))
    prefix = f"{name}." if name else ""
    for key, child in module._modules.items():
        if child is not None:
            _walk(prefix + key, child, found)
