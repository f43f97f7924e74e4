"""Write a safetensors file without a second copy in memory: a header, then the bytes of each tensor."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.formats.deferred import DeferredTensor, second_names_in
from accel_checkpoint.formats.weight_files import DTYPES
from accel_state.errors import CheckpointError

ALIGNMENT = 64
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def metadata_of(names: Collection[str], second_names: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file that stores ``names``: with further names, as in ``safetensors``."""
    return {"format": "pt", **{name: kept for name, kept in second_names.items() if kept in names}}


def second_names_of(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of tied weights that the file does not store, with the stored name.

    Raises:
        CheckpointError: If the format cannot hold a value.
    """
    reasons = {name: _why_unsupported(value) for name, value in state.items()}
    refused = [f"`{name}` is {reason}" for name, reason in reasons.items() if reason]
    if refused:
        raise CheckpointError(
            f"safetensors holds plain dense tensors only, but {'; '.join(refused)}. "
            "Leave these out of the state dict, gather or convert them, or pass `safe_serialization=False`."
        )
    return second_names_in(state)


def _why_unsupported(value: Any) -> str | None:
    if isinstance(value, DeferredTensor):
        return None
    if not isinstance(value, torch.Tensor):
        return f"of type {type(value).__name__}"
    is_wrapper: bool = is_traceable_wrapper_subclass(value)
    if is_wrapper:
        return f"a {type(value).__name__}"
    if value.layout != torch.strided:
        return f"a tensor of layout {value.layout}"
    if value.is_quantized:
        return f"quantized ({value.dtype})"
    return None


class Writable(Protocol):
    """Accepts bytes to append."""

    def write(self, data: bytes | memoryview, /) -> int: ...


def write_safetensors(
    sink: Writable,
    tensors: Mapping[str, torch.Tensor | DeferredTensor],
    *,
    metadata: Mapping[str, str],
    examine: Callable[[Mapping[str, torch.Tensor]], None] | None = None,
) -> None:
    """Write tensors in the safetensors format, aligned to 64 bytes as far as the format allows.

    Aligned tensors can be used directly from a mapped file with bit-identical results. Matrix kernels choose the order
    of summation by the alignment of their inputs, so the last bits would differ otherwise.

    Args:
        sink: Receives the bytes, from the start of the file.
        tensors: Plain dense tensors, moved to the CPU and made contiguous one at a time.
        metadata: Strings for the header.
        examine: Called with each tensor, by its name, before it is written.

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
            value = tensors[name]
            tensor = value.fetch() if isinstance(value, DeferredTensor) else value
            if examine is not None:
                examine({name: tensor})
            sink.write(bytes_of(tensor))


def order_of_writing(tensors: Mapping[str, torch.Tensor | DeferredTensor]) -> list[str]:
    """Return the names in the order in which tensors are written, and fetched."""
    return sorted(tensors, key=lambda n: (tensors[n].nbytes % ALIGNMENT != 0, -tensors[n].dtype.itemsize, n))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor; without a copy if it is contiguous on the CPU."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return memoryview(dense.reshape(-1).view(torch.uint8).numpy().data)
