"""A backward pass in two halves: to what a stage was handed, and later to its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight


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
        if self._inputs:
            stage_backward_weight(iter(self._weights), self._groups)
        else:
            torch.autograd.backward(self._roots, self._gradients)
