"""Nested tensors as a few flat ones: one buffer per dtype for the small leaves, each large leaf by itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.nested.structures import (
    dataclass_items,
    is_dataclass_instance,
    map_children,
    unsupported_leaf,
)

#: From this size on, copying a tensor into a buffer costs more than a collective of its own. Measured on
#: gloo; on an accelerator memory is faster, and starting a collective takes as long as copying megabytes.
_LARGE_BYTES = {"cpu": 1 << 18}
_LARGE_BYTES_ELSEWHERE = 1 << 22


def flatten(data: Any, *, user: object, dense_only: bool = True) -> tuple[list[torch.Tensor], str]:
    """Return the tensors of nested data and the structure of its containers as text.

    Raises:
        TypeError: If a leaf is no tensor, or no dense one with ``dense_only``; ``user`` is the function that
            the message names.
    """
    leaves: list[torch.Tensor] = []
    structure: list[str] = []

    def enter(values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                if dense_only and (
                    value.layout is not torch.strided or value.is_nested or value.is_quantized
                ):
                    raise TypeError(_not_dense(value, user=user))
                leaves.append(value)
                structure.append("*")
            elif isinstance(value, (list, tuple)):
                structure.append(f"[{len(value)}")
                enter(value)
            elif isinstance(value, Mapping):
                structure.append(f"{{{','.join([_spell(key) for key in value])}}}")
                enter(value.values())
            elif is_dataclass_instance(value):
                fields = dict(dataclass_items(value))
                structure.append(f"{{{','.join(fields)}}}")
                enter(fields.values())
            else:
                raise TypeError(unsupported_leaf(value, user=user))

    enter((data,))
    return leaves, "".join(structure)


def _spell(key: object) -> str:
    """Write a key of a mapping the same way in every process: by its value if plain, else by its class."""
    if isinstance(key, (str, int, float, bytes, type(None))):
        return repr(key)
    if isinstance(key, tuple):
        return f"({','.join([_spell(item) for item in key])})"
    return type(key).__qualname__


def _not_dense(tensor: torch.Tensor, *, user: object) -> str:
    if tensor.is_quantized:
        kind, remedy = "quantized", "dequantize()"
    else:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        remedy = "to_dense()"
    name = getattr(user, "__name__", user)
    return f"`{name}` takes dense tensors, got a {kind} one. Make it dense first (`{remedy}`)."


def rebuild(data: Any, leaves: Iterator[torch.Tensor]) -> Any:
    """Return nested data with the next of ``leaves`` in the place of each tensor."""

    def visit(value: Any) -> Any:
        return next(leaves) if isinstance(value, torch.Tensor) else map_children(value, visit)

    return visit(data)


def is_large(leaf: torch.Tensor) -> bool:
    """Tell whether a leaf is sent by itself."""
    return leaf.nbytes >= _LARGE_BYTES.get(leaf.device.type, _LARGE_BYTES_ELSEWHERE)


@dataclass(frozen=True, slots=True)
class Run:
    """Leaves of one dtype and shape, which follow each other in a buffer."""

    dtype: torch.dtype
    shape: torch.Size
    #: Among the leaves.
    positions: list[int]


class Bucket:
    """Leaves that are sent as one buffer: small ones, in runs, or a single large one.

    torch copies the leaves of a run together, which takes a fraction of the time that many calls take.
    """

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.is_single = len(self.runs) == 1 and len(self.runs[0].positions) == 1

    def num_elements(self) -> int:
        """Return the number of elements of all leaves."""
        return sum(len(run.positions) * run.shape.numel() for run in self.runs)

    def pack(self, leaves: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """Return the values of the leaves end to end as ``dtype``; those of a single leaf uncopied if possible."""
        with torch.no_grad():
            parts = [_join([leaves[position] for position in run.positions]).to(dtype) for run in self.runs]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

    def unpack(
        self,
        values: torch.Tensor,
        finish: Callable[[torch.Tensor, Run], torch.Tensor],
        results: list[torch.Tensor],
    ) -> None:
        """Cut the last dimension of ``values`` and put each leaf's part into ``results``, in memory of its own.

        Args:
            values: ``(n,)``, or ``(world_size, n)``; may be overwritten.
            finish: Returns the results of the leaves of a run, ``(num_leaves, *shape)``, given their part of
                ``values``, ``(..., num_leaves, n)``.
            results: One place for each leaf.
        """
        if self.is_single:
            (run,) = self.runs
            # A view that is made without gradients could not be overwritten by a caller who wants them.
            with torch.enable_grad():
                results[run.positions[0]] = finish(values.unsqueeze(-2), run)[0]
            return
        # torch's annotations describe the variant with `out` only.
        unbind_copy: Any = torch.unbind_copy
        with torch.no_grad():
            start = 0
            for run in self.runs:
                num_leaves, size = len(run.positions), run.shape.numel()
                part = values.narrow(-1, start, num_leaves * size)
                part = part.view(*values.shape[:-1], num_leaves, size)
                for position, result in zip(run.positions, unbind_copy(finish(part, run)), strict=True):
                    results[position] = result
                start += num_leaves * size


def _join(leaves: list[torch.Tensor]) -> torch.Tensor:
    """Return the values of leaves of one dtype and shape end to end."""
    if len(leaves) == 1:
        joined = leaves[0].detach().contiguous().view(-1)
        if joined.stride(0) != 1:  # as of one element it may be, and no other dtype could look at it
            joined = joined.clone(memory_format=torch.contiguous_format)
    else:
        joined = (torch.cat(leaves) if leaves[0].ndim else torch.stack(leaves)).reshape(-1)
    return joined.resolve_conj().resolve_neg()


def make_buckets(leaves: Sequence[torch.Tensor], kind: Callable[[torch.Tensor], Hashable]) -> list[Bucket]:
    """Return the leaves in buckets: those of one device and kind together, the large ones alone."""
    alike: dict[tuple[torch.device, torch.dtype, torch.Size], list[int]] = {}
    for position, leaf in enumerate(leaves):
        alike.setdefault((leaf.device, leaf.dtype, leaf.shape), []).append(position)
    alone: list[Bucket] = []
    shared: dict[Hashable, list[Run]] = {}
    for (device, dtype, shape), positions in alike.items():
        first = leaves[positions[0]]
        if is_large(first):
            alone += [Bucket([Run(dtype, shape, [position])]) for position in positions]
        else:
            shared.setdefault((device, kind(first)), []).append(Run(dtype, shape, positions))
    return [*map(Bucket, shared.values()), *alone]
