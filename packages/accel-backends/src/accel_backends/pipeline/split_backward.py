"""A backward pass in two parts: the gradients of what a stage received, and later those of its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input


class SplitBackward:
    """The backward pass of one stage with one micro-batch.

    Args:
        roots: The outputs of the stage, or its loss.
        gradients: Their gradients; None for a loss.
        inputs: The tensors that the stage received; without any, everything is computed in the second part.
        weights: The trained parameters of the stage.
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
        self._groups: list[_Group] = []
        self._apart: list[tuple[GradientEdge, torch.Tensor | None]] = []
        """Outputs that do not depend on the inputs, with their gradients: of a position bias that is a parameter."""

    @property
    def is_whole(self) -> bool:
        """Whether the second part computes everything."""
        return not self._inputs

    def to_inputs(self) -> None:
        """Compute the gradients of the inputs."""
        if not self._inputs:
            return
        ends = {get_gradient_edge(one).node for one in self._inputs}
        pairs = list(zip(self._roots, self._gradients, strict=True))
        is_apart = [not _leads_to(root, ends) for root, _ in pairs]
        self._apart = [
            (get_gradient_edge(root), gradient)
            for (root, gradient), apart in zip(pairs, is_apart, strict=True)
            if apart
        ]
        pairs = [pair for pair, apart in zip(pairs, is_apart, strict=True) if not apart]
        roots, gradients = [root for root, _ in pairs], [gradient for _, gradient in pairs]
        of_outputs: Any = None if None in gradients else gradients
        if not roots:
            return
        _, groups = stage_backward_input(roots, of_outputs, self._inputs, iter(self._weights))
        # torch's `stage_backward_weight` counts some gradients twice before torch 2.13.
        self._groups = _groups(groups)

    def to_weights(self) -> None:
        """Compute the gradients of the parameters, and add them to those that they have."""
        if not self._inputs:
            torch.autograd.backward(self._roots, self._gradients)
            return
        weights = {get_gradient_edge(weight).node: weight for weight in self._weights}
        while self._groups:
            _add_gradients(self._groups.pop(), weights)
        if self._apart:
            edges, gradients = zip(*self._apart, strict=True)
            nodes = [GradientEdge(node, 0) for node in weights]
            found = torch.autograd.grad(edges, nodes, gradients, allow_unused=True)
            for weight, gradient in zip(self._weights, found, strict=True):
                if gradient is not None:
                    _add(weight, gradient)


def _leads_to(root: torch.Tensor, ends: set[Any]) -> bool:
    """Whether a backward pass from ``root`` reaches one of the nodes ``ends``."""
    seen: set[Any] = set()
    left = [get_gradient_edge(root).node]
    while left:
        node = left.pop()
        if node in ends:
            return True
        if node not in seen:
            seen.add(node)
            left += [one for one, _ in node.next_functions if one is not None]
    return False


@dataclass(frozen=True, slots=True)
class _Group:
    """Parameters whose gradients are computed together.

    Attributes:
        parameters: Their nodes in the autograd graph.
        arrived: The gradients that have arrived where the parameters meet the way to the inputs, by node.
    """

    parameters: set[Any]
    arrived: dict[Any, Sequence[torch.Tensor | None]]


def _groups(found: Sequence[dict[str, Any]]) -> list[_Group]:
    """Return the groups of `stage_backward_input`, which torch 2.13 does not always merge: each parameter once."""
    groups: list[_Group] = []
    for one in found:
        nodes = list(one["intermediates"])
        arrived = [gradients or () for gradients in one.get("grads", [None] * len(nodes))]
        new = _Group(set(one["params"]), dict(zip(nodes, arrived, strict=True)))
        for other in [group for group in groups if group.parameters & new.parameters]:
            groups.remove(other)
            new.parameters.update(other.parameters)
            new.arrived.update(other.arrived)
        groups.append(new)
        one.clear()  # nodes have hooks of `stage_backward_input`, which refer to it
    return groups


def _add_gradients(group: _Group, weights: Mapping[Any, nn.Parameter]) -> None:
    """Compute the gradients of a group, and add them to those that its parameters have; ``weights`` are by node."""
    parameters = list(group.parameters)
    pairs = [
        (GradientEdge(node, place), gradient)
        for node, gradients in group.arrived.items()
        for place, gradient in enumerate(gradients)
        if gradient is not None
    ]
    if not pairs:
        return
    # Gradients that arrived at one of these nodes may have come through another. Then they would come once more.
    handles = [
        node.register_prehook(lambda _, once=gradients: once)
        for node, gradients in group.arrived.items()
        if gradients
    ]
    try:
        found = torch.autograd.grad(
            [edge for edge, _ in pairs],
            [GradientEdge(node, 0) for node in parameters],
            [gradient for _, gradient in pairs],
            # The way to these parameters may lead through nodes that other groups need, as with T5's position bias.
            retain_graph=True,
        )
    finally:
        for handle in handles:
            handle.remove()
    for node, gradient in zip(parameters, found, strict=True):
        _add(weights[node], gradient)


def _add(weight: nn.Parameter, gradient: torch.Tensor) -> None:
    if weight.grad is None:
        weight.grad = gradient.contiguous()  # not an expanded one, to which none can be added
    else:
        weight.grad += gradient
