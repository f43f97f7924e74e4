"""Pack tensors into a few flat ones: the small tensors of a dtype end to end, each large tensor separate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors  # ravels and joins in one call of C++

#: From this size on, copying a tensor into a buffer costs more than a separate collective. Measured on
#: gloo; on an accelerator memory is faster, and starting a collective takes as long as copying megabytes.
_LARGE_BYTES = {"cpu": 1 << 18}
_LARGE_BYTES_ELSEWHERE = 1 << 22


class Packed:
    """Tensors as few flat ones: the small ones of a device and dtype end to end, each large one separate.

    Attributes:
        flats: The flat tensors, outside autograd. One that holds a single contiguous tensor shares its memory.
    """

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        alike: dict[tuple[torch.device, torch.dtype, torch.Size], list[int]] = {}
        for position, leaf in enumerate(leaves):
            alike.setdefault((leaf.device, leaf.dtype, leaf.shape), []).append(position)
        separate: list[list[list[int]]] = []
        together: dict[tuple[torch.device, torch.dtype], list[list[int]]] = {}
        for (device, dtype, _), positions in alike.items():
            if leaves[positions[0]].nbytes >= _LARGE_BYTES.get(device.type, _LARGE_BYTES_ELSEWHERE):
                separate += [[[position]] for position in positions]
            else:
                together.setdefault((device, dtype), []).append(positions)
        # The positions of the leaves in each flat tensor; leaves of one shape are in one list and unpacked at once.
        self._groups = [*together.values(), *separate]
        self._sizes = [[len(same) * leaves[same[0]].numel() for same in group] for group in self._groups]
        self.flats = [_join([leaves[each] for same in group for each in same]) for group in self._groups]

    def unpack(
        self, flats: Iterable[torch.Tensor], shapes: Sequence[Sequence[int]], *, copy: bool = True
    ) -> list[torch.Tensor]:
        """Return, in the given shapes, the part of each tensor along the last dimension of ``flats``, on their device.

        Args:
            flats: ``(n,)``, or ``(world_size, n)``.
            shapes: One for each tensor; equal for tensors that had one shape.
            copy: Allocate each result separately; otherwise the results of a dtype are views of one buffer.
        """
        results: list[Any] = [None] * len(shapes)
        # torch's annotations describe the variant with `out` only.
        unbind: Any = torch.unbind_copy if copy else torch.unbind
        # A view that is made without gradients could not be overwritten by a caller with gradients enabled.
        with torch.enable_grad():
            for group, sizes, flat in zip(self._groups, self._sizes, flats, strict=True):
                if len(group) == len(group[0]) == 1:  # not shared with other results
                    results[group[0][0]] = flat.view(shapes[group[0][0]])
                    continue
                for same, part in zip(group, torch.split_with_sizes(flat, sizes, dim=-1), strict=True):
                    of_each = part.view(*part.shape[:-1], len(same), part.shape[-1] // len(same))
                    values = unbind(of_each.movedim(-2, 0).reshape(len(same), *shapes[same[0]]))
                    for position, value in zip(same, values, strict=True):
                        results[position] = value
        return results


@torch.no_grad()
def _join(leaves: list[torch.Tensor]) -> torch.Tensor:
    """Return the values of tensors of one dtype end to end."""
    parts = leaves if len(leaves) > 1 else [leaves[0].detach()]
    flat: torch.Tensor = _flatten_dense_tensors(parts)  # type: ignore[no-untyped-call]
    if flat.stride(0) != 1:  # possible with one element, and then no other dtype can view it
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.resolve_conj().resolve_neg()  # collectives send the memory, without these lazy bits
