"""Dtypes by name, and their sizes in bytes."""

from __future__ import annotations

import torch

from accel_state.enums import CustomDtype
from accel_state.errors import ConfigError, UnknownNameError

_CUSTOM_BYTES = {CustomDtype.FP8: 1.0, CustomDtype.INT4: 0.5, CustomDtype.INT2: 0.25}


def as_dtype(dtype: str | torch.dtype | CustomDtype) -> torch.dtype | CustomDtype:
    """Return a dtype by its name: ``"bfloat16"``, ``"torch.bfloat16"``, ``"int4"`` …

    Raises:
        UnknownNameError: If there is no such dtype.
    """
    if isinstance(dtype, torch.dtype | CustomDtype):
        return dtype
    name = str(dtype).removeprefix("torch.")
    if name in CustomDtype.list():
        return CustomDtype(name)
    resolved = getattr(torch, name, None)
    if not isinstance(resolved, torch.dtype):
        known = {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
        raise UnknownNameError.of("dtype", str(dtype), known | set(CustomDtype.list()))
    return resolved


def as_torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return a torch dtype by its name.

    Raises:
        UnknownNameError: If there is no such dtype.
        ConfigError: If it only has a size, such as ``int4``, so that tensors cannot be cast to it.
    """
    resolved = as_dtype(dtype)
    if not isinstance(resolved, torch.dtype):
        raise ConfigError(
            f"`{dtype}` has a size but no torch dtype, so no tensor can be cast to it. "
            "Choose a torch dtype for the tensor."
        )
    return resolved


def dtype_byte_size(dtype: torch.dtype | CustomDtype | str) -> int | float:
    """Return the bytes of one element: 4 for float32, 0.5 for ``CustomDtype.INT4``, 1/8 for booleans.

    A boolean in a tensor takes a full byte, see `memory_byte_size`; this is the packed size, as in Accelerate.
    """
    resolved = as_dtype(dtype)
    return 1 / 8 if resolved is torch.bool else memory_byte_size(resolved)


def memory_byte_size(dtype: torch.dtype | CustomDtype) -> int | float:
    """Return the bytes of one element in the memory of a tensor, less than 1 for packed dtypes."""
    return dtype.itemsize if isinstance(dtype, torch.dtype) else _CUSTOM_BYTES[dtype]
