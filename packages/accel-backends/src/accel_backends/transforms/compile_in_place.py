"""Regional compilation that leaves every module the object that it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accel_backends.plans.repeated_blocks import has_repeated_blocks, is_repeated_blocks
from accel_backends.plans.sources import resolve_plan


def compile_regions_deepspeed(module: nn.Module, **compile_kwargs: Any) -> None:
    """Compile each repeated block of a model in place, and what lies beside the blocks on its own.

    Modules keep the hooks and the parameters that DeepSpeed's engine has put there.

    Args:
        module: The model, changed in place.
        **compile_kwargs: Arguments of `torch.compile`.
    """
    if is_repeated_blocks(module):
        for block in module.children():
            block.compile(**compile_kwargs)
    elif has_repeated_blocks(module):
        for child in module.children():
            compile_regions_deepspeed(child, **compile_kwargs)
    else:
        module.compile(**compile_kwargs)


def compile_regions_fsdp2(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Compile the repeated blocks of ``module`` in place, so that equal ones share a graph; return it.

    Args:
        module: Any model; one without repeated blocks is compiled as a whole.
        **compile_kwargs: Arguments of `torch.compile`.
    """
    for name in resolve_plan(module).units or ("",):
        unit = module.get_submodule(name)
        unit.forward = torch.compile(unit.forward, **compile_kwargs)
    return module
