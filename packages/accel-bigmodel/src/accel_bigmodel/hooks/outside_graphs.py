"""The work of hooks, kept out of the graphs of ``torch.compile``: imported only while one is being made."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


@torch.compiler.disable
def prepare(
    hook: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Do what comes before the forward, and return its arguments."""
    prepared: tuple[tuple[Any, ...], dict[str, Any]] = hook.prepare(module, args, kwargs)
    return prepared


@torch.compiler.disable
def finish(hook: Any, module: nn.Module, output: Any) -> Any:
    """Do what comes after the forward, and return the output."""
    return hook.finish(module, output)
