"""What attention over shared sequences keeps and sends: found in a pass without values, on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from accel_backends.sequence_parallel.attention import key_repeats
from accel_state.mesh_layout import MeshLayout

Send = Callable[..., None]


class WatchedAttention(TorchFunctionMode):
    """Within it, `scaled_dot_product_attention` has the sizes that it has on a rank, and tells what that sends.

    Args:
        layout: Says how many ranks share sequences, and by what.
        ring: Keys and values are gathered again for the backward pass (``cp_comm_strategy`` ``alltoall``).
        send: Called with the kind, the bytes and the axes of each collective, and whether it is in the forward pass.
    """

    def __init__(self, layout: MeshLayout, *, ring: bool, send: Send) -> None:
        super().__init__()
        self._axis = "sp" if layout.sp > 1 else "cp"
        self._num_ranks = layout.size(self._axis)
        self._attend = self._exchanged if layout.sp > 1 else self._gathered_twice if ring else self._gathered
        self._send_to = send

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return self._computed(*args, **(kwargs or {}))

    def _computed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        return self._attend(query, key, value, {"dropout_p": dropout_p, "enable_gqa": enable_gqa})

    def _gathered(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        held = torch.cat([key, value], -1)
        whole = torch.cat([held] * self._num_ranks, -2)
        self._send("all_gather", whole.nbytes, in_forward=True)
        if held.requires_grad:
            self._send("reduce_scatter", whole.nbytes, in_forward=False)
        keys, values = whole[..., : key.shape[-1]], whole[..., key.shape[-1] :]
        return F.scaled_dot_product_attention(query, keys, values, **options)

    def _gathered_twice(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        num_bytes = self._num_ranks * (key.nbytes + value.nbytes)
        self._send("all_gather", num_bytes, in_forward=True)
        if key.requires_grad:
            self._send("all_gather", num_bytes, in_forward=False)
            self._send("reduce_scatter", num_bytes, in_forward=False)
        return F.scaled_dot_product_attention(query, key, value, **options)

    def _exchanged(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        num_ranks = self._num_ranks
        repeats = key_repeats(query.shape[1], key.shape[1], num_ranks=num_ranks)
        key, value = (one.repeat_interleave(repeats, 1) for one in (key, value))
        given = [query, key, value]
        of_heads = [torch.cat(one.chunk(num_ranks, 1), 2) for one in given]
        self._exchange(sum(one.nbytes for one in given))
        outputs = F.scaled_dot_product_attention(of_heads[0], of_heads[1], of_heads[2], **options)
        self._exchange(outputs.nbytes)
        return torch.cat(outputs.chunk(num_ranks, 2), 1)

    def _exchange(self, num_bytes: int) -> None:
        for in_forward in (True, False):
            self._send("all_to_all", num_bytes, in_forward=in_forward)

    def _send(self, kind: str, num_bytes: int, *, in_forward: bool) -> None:
        self._send_to(kind, num_bytes, in_forward=in_forward, axes=(self._axis,))
