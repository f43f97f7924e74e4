"""Parameters and buffers of a module, by name."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from accel_ops.named_tensors import tied_names


def named_module_tensors(
    module: nn.Module,
    include_buffers: bool = True,
    recurse: bool = False,
    remove_non_persistent: bool = False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and then the buffers of ``module``, each tied one once, under its first name.

    Args:
        module: The module to walk.
        include_buffers: Whether buffers are yielded at all.
        recurse: Whether those of submodules are yielded too, with dotted names.
        remove_non_persistent: Leave out buffers that are not part of the state dict.
    """
    yield from module.named_parameters(recurse=recurse)
    if not include_buffers:
        return
    left_out = (
        get_non_persistent_buffers(module, recurse=recurse, fqns=True) if remove_non_persistent else set()
    )
    for name, buffer in module.named_buffers(recurse=recurse):
        if name not in left_out:
            yield name, buffer


def get_non_persistent_buffers(module: nn.Module, recurse: bool = False, fqns: bool = False) -> set[str]:
    """Return the names of the buffers that are not part of the state dict.

    Args:
        module: The module to look at.
        recurse: Whether to look into its submodules.
        fqns: Give dotted names from ``module`` down, rather than the name inside each submodule.
    """
    modules = module.named_modules(remove_duplicate=False) if recurse else [("", module)]
    return {
        f"{prefix}.{name}" if fqns and prefix else name
        for prefix, submodule in modules
        for name in submodule._non_persistent_buffers_set
    }


def find_tied_parameters(model: nn.Module, **kwargs: bool) -> list[list[str]]:
    """Return groups of names under which one parameter is known, each group and the list sorted.

    Works on any device, meta included: a tie is two names for one ``Parameter`` object, not equal values.

    Args:
        model: The model to look at.
        kwargs: Accepted for older callers; nothing is read from it.
    """
    return sorted(sorted(group) for group in tied_names(model))
