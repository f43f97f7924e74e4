"""Write a safetensors file without holding a second copy of it: a header, then the bytes as they lie in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from accel_checkpoint.formats.safetensor_ranges import DTYPES
from accel_state.errors import CheckpointError

ALIGNMENT = 64
_CODES = {dtype: code for code, dtype in DTYPES.items()}


class Writable(Protocol):
    """What bytes can be appended to."""

    def write(self, data: bytes | memoryview, /) -> int: ...


def write_safetensors(
    sink: Writable, tensors: Mapping[str, torch.Tensor], *, metadata: Mapping[str, str]
) -> None:
    """Write tensors in the format of safetensors; they begin, where it allows that, at multiples of 64 bytes.

    Mapped, these can be computed with as they lie: matrix kernels choose their order of summation by the alignment
    of what they are given, so that elsewhere the last bits would differ.

    Args:
        sink: Takes the bytes, from the beginning of a file.
        tensors: Plain dense tensors, moved to the CPU and made contiguous one at a time.
        metadata: Strings for the header.

    Raises:
        CheckpointError: If the format has no name for a dtype.
    """
    # No gaps are allowed, so those that would shift the next come last, the widest types first.
    names = sorted(tensors, key=lambda n: (tensors[n].nbytes % ALIGNMENT != 0, -tensors[n].dtype.itemsize, n))
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
        if tensors[name].numel():
            sink.write(_bytes_of(tensors[name]))


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the numbers of a tensor as bytes; of one that lies contiguous on the CPU without a copy."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return memoryview(dense.reshape(-1).view(torch.uint8).numpy().data)
