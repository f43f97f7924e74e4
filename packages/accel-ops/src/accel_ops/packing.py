"""Pack tensors into a few flat ones: the small tensors of a dtype end to end, each large tensor alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors

#: From this size on, copying a tensor into a buffer costs more than a collective for it alone. Measured on
#: gloo; on an accelerator memory is faster, and starting a collective takes as long as copying megabytes.
_LARGE_BYTES = {"cpu": 1 << 18}
_LARGE_BYTES_ELSEWHERE = 1 << 22


class Packed:
    """Tensors as few flat ones: the small ones of a device and dtype end to end, each large one alone.

    Attributes:
        flats: The flat tensors, outside autograd. One that holds a single contiguous tensor shares its memory.
    """

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        alone: list[list[int]] = []
        together: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for position, leaf in enumerate(leaves):
            device = leaf.device
            if leaf.nbytes >= _LARGE_BYTES.get(device.type, _LARGE_BYTES_ELSEWHERE):
                alone.append([position])
            else:
                together.setdefault((device, leaf.dtype), []).append(position)
        self._groups = [*together.values(), *alone]
        self._sizes = [[leaves[position].numel() for position in group] for group in self._groups]
        self.flats = [_join([leaves[position] for position in group]) for group in self._groups]

    def unpack(
        self, flats: Iterable[torch.Tensor], shapes: Sequence[Sequence[int]], *, copy: bool = True
    ) -> list[torch.Tensor]:
        """Return, in the given shapes, the part of each tensor along the last dimension of ``flats``.

        With ``copy`` each is in memory of its own; otherwise those of a dtype are views of one memory.
        """
        results: list[Any] = [None] * len(shapes)
        # torch's annotations describe the variant with `out` only.
        split: Any = torch.split_with_sizes_copy if copy else torch.split_with_sizes
        # A view that is made without gradients could not be overwritten by a caller who wants them.
        with torch.enable_grad():
            for group, sizes, flat in zip(self._groups, self._sizes, flats, strict=True):
                parts = split(flat, sizes, dim=-1) if len(group) > 1 else [flat]
                for position, part in zip(group, parts, strict=True):
                    results[position] = part.view(shapes[position])
        return results


@torch.no_grad()
def _join(leaves: list[torch.Tensor]) -> torch.Tensor:
    """Return the values of tensors of one dtype end to end."""
    parts = leaves if len(leaves) > 1 else [leaves[0].detach()]
    flat: torch.Tensor = _flatten_dense_tensors(parts)  # type: ignore[no-untyped-call]
    if flat.stride(0) != 1:  # possible with one element, and then no other dtype can view it
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.resolve_conj().resolve_neg()
