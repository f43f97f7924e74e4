"""Which of several models a loss was computed from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


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
        hidden = getattr(getattr(run, "func", run), "__self__", run)
        if isinstance(hidden, nn.Module):
            found |= {owners[id(one)] for one in hidden.parameters() if id(one) in owners}
        waiting.extend(before for before, _ in node.next_functions)
    return found
