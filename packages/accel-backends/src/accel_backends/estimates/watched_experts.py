"""Experts in a run without values, in which it is unknown which experts a token chooses, and what they send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from accel_state.mesh_layout import MeshLayout


@contextmanager
def watched_experts(
    spread: Iterable[nn.Module],
    sharded: Iterable[nn.Module],
    layout: MeshLayout,
    *,
    send: Callable[..., None],
) -> Iterator[None]:
    """Replace the forwards of modules with experts in the block, which depend on values.

    Experts that are spread over ranks send their tokens: all experts get as many. What experts keep for the backward
    pass is left out, except the tokens that leave and come back.

    Args:
        spread: Modules whose experts are spread over EP ranks.
        sharded: Modules with experts that are sharded over TP ranks.
        layout: The ranks over which experts are spread, and those that have the same tokens.
        send: Called with the kind, the bytes and the axes of each collective, and whether it is in the forward pass.
    """
    forwards: dict[nn.Module, Any] = dict.fromkeys(sharded, _without_values)
    forwards |= {module: _Sending(module, layout, send) for module in spread}
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module, original in before.items():
            del module.forward
            if original is not None:
                module.forward = original


def _without_values(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.empty_like(hidden_states)


class _Sending:
    """What `DispatchedExperts` sends, with the same arguments."""

    def __init__(self, module: nn.Module, layout: MeshLayout, send: Callable[..., None]) -> None:
        parameters = list(module.parameters())
        self._num_experts = len(parameters[0])
        self._is_trained = any(one.requires_grad for one in parameters)
        self._num_sharing = layout.tp
        self._send = send

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        if self._num_sharing == 1:
            return self._dispatched(hidden_states, top_k_weights)
        num_own = -(-len(hidden_states) // self._num_sharing)
        for one in (hidden_states, top_k_weights):
            if one.requires_grad:
                self._send(
                    "all_gather", one.nbytes // len(one) * num_own * self._num_sharing, in_forward=False
                )
        own = self._dispatched(hidden_states[:num_own], top_k_weights[:num_own])
        whole = torch.cat([own] * self._num_sharing)
        self._send("all_gather", whole.nbytes, in_forward=True)
        return whole[: len(hidden_states)]

    def _dispatched(self, hidden_states: Tensor, weights: Tensor) -> Tensor:
        self._exchange(self._num_experts * torch.int64.itemsize, has_gradient=False)
        rows = hidden_states.repeat_interleave(weights.shape[1], 0)
        self._exchange(rows.nbytes, has_gradient=rows.requires_grad)
        self._exchange(rows.nbytes, has_gradient=rows.requires_grad or self._is_trained)
        return (rows.view(*weights.shape, -1) * weights.unsqueeze(-1)).sum(1).to(hidden_states.dtype)

    def _exchange(self, num_bytes: int, *, has_gradient: bool) -> None:
        for in_forward in (True, False) if has_gradient else (True,):
            self._send("all_to_all", num_bytes, in_forward=in_forward, axes=("ep",))
