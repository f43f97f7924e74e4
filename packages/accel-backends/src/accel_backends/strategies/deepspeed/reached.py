"""Which of several models a loss was computed from."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from accel_state.errors import ConfigError


def reached_by(loss: torch.Tensor, owners: Mapping[int, int]) -> set[int]:
    """Return the values of ``owners`` whose parameters, by their ``id``, ``loss`` depends on."""
    found: set[int] = set()
    num_owners = len(set(owners.values()))
    seen = set()
    waiting = [loss.grad_fn]
    while waiting and len(found) < num_owners:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        parameter = getattr(node, "variable", None)
        if parameter is not None and id(parameter) in owners:
            found.add(owners[id(parameter)])
        run = getattr(node, "run_function", None)  # reentrant checkpointing hides the graph of what it runs
        if run is not None:
            modules = list(_modules_in(run))
            if not modules:
                raise ConfigError(
                    f"`backward` got a loss of a `checkpoint` with `use_reentrant=True` that ran `{run!r}`, where no "
                    "module is seen, so DeepSpeed's engines cannot know which of several models it used. Pass "
                    "`use_reentrant=False`, or the module itself."
                )
            hidden = (id(one) for module in modules for one in module.parameters())
            found |= {owners[one] for one in hidden if one in owners}
        waiting.extend(before for before, _ in node.next_functions)
    return found


def _modules_in(value: Any, *, depth: int = 4) -> Iterator[nn.Module]:
    """Yield the modules in a callable: itself, or in its method's object, partial, closure or the globals it names."""
    if isinstance(value, nn.Module):
        yield value
    elif depth:
        inside = list(value) if isinstance(value, (list, tuple)) else []
        if isinstance(value, functools.partial):
            inside = [value.func, *value.args, *value.keywords.values()]
        elif inspect.ismethod(value):
            inside = [value.__self__]
        elif inspect.isfunction(value):
            names = inspect.getclosurevars(value)
            inside = [*names.nonlocals.values(), *names.globals.values()]
        for each in inside:
            yield from _modules_in(each, depth=depth - 1)
