"""Regional compilation: n equal layers are compiled once, not n times within one large graph."""

from __future__ import annotations

from typing import Any

from torch import nn

from accel_backends.module_tree import replace_submodules, shallow_copy
from accel_backends.plans.repeated_blocks import has_repeated_blocks, is_repeated_blocks
from accel_backends.unwrap import is_compiled_module


def has_compiled_regions(module: nn.Module) -> bool:
    """Whether ``module`` came from `compile_regions`: not compiled as a whole, but in parts."""
    return (
        not is_compiled_module(module)
        and "_orig_mod" in module.__dict__
        and any(is_compiled_module(submodule) for submodule in module.modules())
    )


def compile_regions(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Compile each repeated block of ``module``, and what lies beside the blocks, on its own.

    Blocks of one class run the same code, so the compiler works once for all of them. A model without
    repeated blocks is compiled as a whole.

    Args:
        module: The model; it stays as it is.
        **compile_kwargs: Arguments of `torch.compile`.

    Returns:
        A model of the same class with the same parameters and state dict keys; ``_orig_mod`` is the original.
    """
    # The compiler takes a second to import; questions about compiled modules do not need it.
    from accel_backends.transforms.compiled_module import compile_module

    if not has_repeated_blocks(module):
        return compile_module(module, **compile_kwargs)

    def compiled(part: nn.Module) -> nn.Module:
        if is_repeated_blocks(part) or has_repeated_blocks(part):
            return part
        return compile_module(part, **compile_kwargs) if any(True for _ in part.parameters()) else part

    regional = replace_submodules(module, compiled)
    if regional is module:  # a list of blocks without parameters: nothing was worth compiling
        regional = shallow_copy(module)
    regional.__dict__["_orig_mod"] = module
    return regional
