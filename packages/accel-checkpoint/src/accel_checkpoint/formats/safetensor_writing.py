"""Write a safetensors file without a second copy in memory: a header, then the bytes of each tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from accel_checkpoint.formats.deferred import DeferredTensor, fetched
from accel_checkpoint.formats.safetensor_ranges import DTYPES
from accel_state.errors import CheckpointError

ALIGNMENT = 64
_CODES = {dtype: code for code, dtype in DTYPES.items()}


class Writable(Protocol):
    """Accepts bytes to append."""

    def write(self, data: bytes | memoryview, /) -> int: ...


def write_safetensors(
    sink: Writable, tensors: Mapping[str, torch.Tensor | DeferredTensor], *, metadata: Mapping[str, str]
) -> None:
    """Write tensors in the safetensors format, aligned to 64 bytes as far as the format allows.

    Aligned tensors can be used directly from a mapped file with bit-identical results. Matrix kernels choose the order
    of summation by the alignment of their inputs, so the last bits would differ otherwise.

    Args:
        sink: Receives the bytes, from the start of the file.
        tensors: Plain dense tensors, moved to the CPU and made contiguous one at a time.
        metadata: Strings for the header.

    Raises:
        CheckpointError: If the format has no name for a dtype.
    """
    # The format allows no gaps, so tensors that would misalign the next one come last, the widest dtypes first.
    names = order_of_writing(tensors)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _CODES:
            raise CheckpointError(
                f"safetensors has no type for `{name}`, which is {tensor.dtype}. Pass `safe_serialization=False`."
            )
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    sink.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        if tensors[name].nbytes:
            sink.write(bytes_of(fetched(tensors[name])))


def order_of_writing(tensors: Mapping[str, torch.Tensor | DeferredTensor]) -> list[str]:
    """Return the names in the order in which tensors are written, and fetched."""
    return sorted(tensors, key=lambda n: (tensors[n].nbytes % ALIGNMENT != 0, -tensors[n].dtype.itemsize, n))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor; without a copy if it is contiguous on the CPU."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return memoryview(dense.reshape(-1).view(torch.uint8).numpy().data)
