"""Plain data: the content that a checkpoint file may have, because it loads without running code."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_state.errors import CheckpointError

LEAVES = (type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.dtype,
           torch.device)  # fmt: skip
CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)
NUMPY_KINDS = "biufc"
_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")),
}
_NUMPY_CODES = {
    np.dtype(code).str[1:] for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"
}
_NUMPY_HOMES = ("numpy._core.multiarray", "numpy.core.multiarray")


@cache
def harmless_globals() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Return the globals that are safe beyond those of `torch.load(weights_only=True)`: NumPy numbers, and `b""`."""
    # Registered under both paths: NumPy 2 moved them, and a file contains the path of the version that wrote it.
    builders: list[Any] = [(lambda *_: np.empty(0), "_reconstruct"), (np.float64().__reduce__()[0], "scalar")]
    kinds: list[Any] = [np.ndarray, *{type(np.dtype(code)) for code in _NUMPY_CODES}]
    return [
        *[(build, f"{home}.{name}") for build, name in builders for home in _NUMPY_HOMES],
        (_number_dtype, "numpy.dtype"),
        (_no_bytes, "numpy.ndarray"),  # a file names it, but does not call it
        (_no_bytes, "builtins.bytes"),
        # What these build gets its state from the file. No file can name the classes themselves, whose instances are
        # shared by the process or take any amount of memory: a name cannot contain a newline.
        *[(kind, f"\n{kind.__name__}") for kind in kinds],
    ]


def _number_dtype(code: str, align: bool = False, copy: bool = True) -> np.dtype[Any]:
    """Stand in for `numpy.dtype`: return a dtype of numbers that is not shared with the process."""
    if code not in _NUMPY_CODES:
        raise ValueError(f"`{code}` is no dtype of numbers")
    return np.dtype(code, copy=True)


def _no_bytes() -> bytes:
    """Stand in for `bytes`, which pickle calls without arguments for `b""`; an argument could exhaust memory."""
    return b""


def check_loaded(content: Any, *, num_bytes: int) -> None:
    """Reject forged arrays and tensors, which claim more than the file holds, or have indices outside their shape.

    Call it before anything accesses the loaded content: torch does not check the indices of sparse tensors.

    Args:
        content: The loaded content of a file.
        num_bytes: Size of the file.

    Raises:
        CheckpointError: If there is any; names its path in the content.
    """
    for where, kind in _forged_values(content, "", num_bytes, set()):
        raise CheckpointError(f"`{where or 'its content'}` is a forged {kind}")


def _forged_values(content: Any, where: str, num_bytes: int, seen: set[int]) -> Iterator[tuple[str, str]]:
    if is_traceable_wrapper_subclass(content):  # such as quantized: its nominal size is not what it stores
        for name in content.__tensor_flatten__()[0]:
            yield from _forged_values(getattr(content, name), f"{where}.{name}", num_bytes, seen)
    elif isinstance(content, torch.Tensor):
        if content.layout == torch.strided and content.numel() * content.element_size() > num_bytes:
            yield where, "tensor, larger than the file"
        if parts := [getattr(content, part)() for part in _SPARSE_PARTS.get(content.layout, ())]:
            for part in parts:
                yield from _forged_values(part, where, num_bytes, seen)
            make: Any = torch.sparse_coo_tensor  # checks the indices, by which torch accesses memory
            if content.layout != torch.sparse_coo:
                make = partial(torch.sparse_compressed_tensor, layout=content.layout)
            make(*parts, content.shape, check_invariants=True)
    elif isinstance(content, torch.UntypedStorage):
        if content.nbytes() > num_bytes:
            yield where, "storage, larger than the file"
    elif isinstance(content, np.ndarray):  # of numbers: `check_pickle` lets no other dtype pass
        if content.nbytes > num_bytes:
            yield where, "array, larger than the file"
    elif isinstance(content, CONTAINERS) and id(content) not in seen:
        seen.add(id(content))
        for name, value in _members(content):
            if type(value) in LEAVES:  # such as the hundreds of numbers of a random state
                continue
            yield from _forged_values(value, f"{where}.{name}" if where else str(name), num_bytes, seen)


def _members(content: Any) -> Iterable[tuple[Any, Any]]:
    return content.items() if isinstance(content, Mapping) else enumerate(content)
