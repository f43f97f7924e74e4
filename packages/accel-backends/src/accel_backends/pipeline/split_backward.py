"""A backward pass in two halves: to what a stage was handed, and later to its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input


class SplitBackward:
    """The backward pass of one stage with one micro-batch.

    Args:
        roots: What the stage computed, or its loss.
        gradients: Of them; None for a loss.
        inputs: What the stage was handed; without any, everything is computed in the second half.
        weights: The trained parameters that the stage computes with.
    """

    def __init__(
        self,
        roots: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        inputs: Sequence[torch.Tensor],
        weights: Sequence[nn.Parameter],
    ) -> None:
        self._roots = [root.clone() if root._is_view() else root for root in roots]
        self._gradients = list(gradients)
        self._inputs = list(inputs)
        self._weights = list(weights)
        self._groups: list[dict[str, Any]] = []

    @property
    def is_whole(self) -> bool:
        """Whether the second half is all of it."""
        return not self._inputs

    def to_inputs(self) -> None:
        """Compute the gradients of the inputs."""
        if self._inputs:
            gradients: Any = None if None in self._gradients else self._gradients
            _, self._groups = stage_backward_input(self._roots, gradients, self._inputs, iter(self._weights))

    def to_weights(self) -> None:
        """Compute the gradients of the parameters, and add them to those that they have."""
        if not self._inputs:
            torch.autograd.backward(self._roots, self._gradients)
            return
        weights = {get_gradient_edge(weight).node: weight for weight in self._weights}
        while self._groups:
            _add_gradients(self._groups.pop(), weights)


def _add_gradients(group: dict[str, Any], weights: Mapping[Any, nn.Parameter]) -> None:
    """Compute the gradients of a group of parameters, from what arrived where they meet the way to the inputs.

    torch's own `stage_backward_weight` counts some of it twice before torch 2.13.

    Args:
        group: From `stage_backward_input`: the nodes of the parameters, and those where they meet the way to the
            inputs, with the gradients that arrived there.
        weights: The parameters by their nodes.
    """
    parameters, nodes = list(group["params"]), list(group["intermediates"])
    arrived = [gradients or () for gradients in group.get("grads", [None] * len(nodes))]
    pairs = [
        (GradientEdge(node, place), gradient)
        for node, gradients in zip(nodes, arrived, strict=True)
        for place, gradient in enumerate(gradients)
        if gradient is not None
    ]
    if not pairs:
        return
    # What arrived at one of these nodes may have come through another. Then it would come once more.
    handles = [
        node.register_prehook(lambda _, once=gradients: once)
        for node, gradients in zip(nodes, arrived, strict=True)
        if gradients
    ]
    try:
        found = torch.autograd.grad(
            [edge for edge, _ in pairs],
            [GradientEdge(node, 0) for node in parameters],
            [gradient for _, gradient in pairs],
        )
    finally:
        for handle in handles:
            handle.remove()
        group.clear()  # nodes hold hooks of `stage_backward_input`, which hold the group
    for node, gradient in zip(parameters, found, strict=True):
        weight = weights[node]
        if weight.grad is None:
            weight.grad = gradient
        else:
            weight.grad += gradient
