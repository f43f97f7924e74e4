"""Write a safetensors file without holding a second copy of it: a header, then the bytes as they lie in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

import torch

from accel_state.errors import CheckpointError

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Writable(Protocol):
    """What bytes can be appended to."""

    def write(self, data: bytes | memoryview) -> int: ...


def write_safetensors(
    sink: Writable, tensors: Mapping[str, torch.Tensor], *, metadata: Mapping[str, str]
) -> None:
    """Write ``tensors`` to ``sink`` in the format of safetensors.

    Args:
        sink: Takes the bytes.
        tensors: Plain dense tensors, moved to the CPU and made contiguous one at a time.
        metadata: Strings for the header.

    Raises:
        CheckpointError: If the format has no name for a dtype.
    """
    # Widest first, so that each tensor lies at a multiple of the size of its numbers.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in TYPES:
            raise CheckpointError(f"safetensors has no type for `{name}`, which is {tensor.dtype}.")
        end = start + tensor.nbytes
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    sink.write(len(encoded).to_bytes(8, "little") + encoded)
    for name in names:
        if tensors[name].numel():
            sink.write(bytes_of(tensors[name]))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the numbers of a tensor as bytes; of one that lies contiguous on the CPU without a copy."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return memoryview(dense.reshape(-1).view(torch.uint8).numpy().data)
