"""Modules with experts in runs without values, where nobody knows which experts a token chose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accel_backends.estimates.placeholders import is_placeholder, placeholder_of
from accel_backends.wrapped_forward import WrappedForward


class TraceableExperts(WrappedForward):
    """The forward of a module with experts, which for tokens or experts without values returns others without values.

    Args:
        experts: The module; its forward takes ``(tokens, features)`` first, and returns that shape.
    """

    def __init__(self, experts: nn.Module) -> None:
        super().__init__(experts.forward)
        self._experts = experts

    def __call__(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return what the experts compute, or what has its shape."""
        parameters = list(self._experts.parameters())
        if not any(map(is_placeholder, (hidden_states, *parameters))):
            computed: torch.Tensor = self.original(hidden_states, *args, **kwargs)
            return computed
        for parameter in parameters:
            parameter.sum()  # so that a trace sees which stage uses it
        if not is_placeholder(hidden_states):
            hidden_states = placeholder_of(hidden_states, hidden_states.device)
        return torch.empty_like(hidden_states)


@contextmanager
def traceable_experts(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let modules with experts run without values in the block."""
    before = [(experts, vars(experts).get("forward")) for experts in modules]
    for experts in modules:
        if not isinstance(experts.forward, TraceableExperts):
            experts.forward = TraceableExperts(experts)
    try:
        yield
    finally:
        for experts, forward in before:
            if forward is None:
                del experts.forward
            else:
                experts.forward = forward
