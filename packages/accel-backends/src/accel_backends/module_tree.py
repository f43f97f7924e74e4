"""Shallow copies of module trees: the same parameters, another tree above them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

from accel_backends.wrapped_forward import RebindableForward


def replace_submodules(module: nn.Module, replacement: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return ``module`` with some of its descendants replaced, without touching ``module`` itself.

    Args:
        module: The root of a tree.
        replacement: Called for every module from the root down; what it returns takes the module's place and
            is not searched further. Returning the module itself searches its children.

    Returns:
        ``module`` if nothing was replaced, else a tree in which the ancestors of replaced modules are shallow
        copies. Parameters, buffers and hooks are the same objects in both trees.
    """
    return _replace(module, replacement, {})


def _replace(
    module: nn.Module, replacement: Callable[[nn.Module], nn.Module], done: dict[int, nn.Module]
) -> nn.Module:
    if id(module) in done:  # one module at two places stays one module
        return done[id(module)]
    result = replacement(module)
    if result is module:
        children = {
            name: child if child is None else _replace(child, replacement, done)
            for name, child in module._modules.items()
        }
        if any(child is not module._modules[name] for name, child in children.items()):
            result = shallow_copy(module)
            result.__dict__["_modules"] = children
    done[id(module)] = result
    return result


def shallow_copy(module: nn.Module) -> nn.Module:
    """Return a new module of the same class that shares everything with ``module``.

    Bound methods among its attributes (a forward that somebody replaced) are bound to the copy.
    """
    copied: nn.Module = object.__new__(type(module))
    copied.__dict__.update({name: _rebind(value, module, copied) for name, value in module.__dict__.items()})
    return copied


def _rebind(value: Any, old: nn.Module, new: nn.Module) -> Any:
    if isinstance(value, MethodType) and value.__self__ is old:
        return MethodType(value.__func__, new)
    if isinstance(value, RebindableForward):
        return value.rebound(lambda original: _rebind(original, old, new), new)
    if isinstance(value, functools.partial) and any(argument is old for argument in value.args):
        arguments = (new if argument is old else argument for argument in value.args)
        rebound = functools.partial(value.func, *arguments, **value.keywords)
        rebound.__dict__.update({name: _rebind(item, old, new) for name, item in value.__dict__.items()})
        return rebound
    return value
