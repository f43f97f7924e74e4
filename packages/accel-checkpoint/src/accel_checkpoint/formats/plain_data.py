"""What may stand in a file of a checkpoint: data that loads without running anything."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_state.errors import CheckpointError

_LEAVES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    torch.Size,
    torch.dtype,
    torch.device,
)
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)
_NUMPY_KINDS = "biufc"
_NUMPY_HOMES = ("numpy._core.multiarray", "numpy.core.multiarray")


def harmless_globals() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Return what files may name beyond what `torch.load(weights_only=True)` allows: numbers of NumPy, and no bytes."""
    kinds = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"}
    # Not by import: NumPy 2 moved them, and a file names the place of the NumPy that wrote it.
    builders: list[Any] = [np.empty(0).__reduce__()[0], np.float64().__reduce__()[0]]
    return [
        *[(build, f"{home}.{build.__name__}") for build in builders for home in _NUMPY_HOMES],
        np.ndarray,
        np.dtype,
        (_no_bytes, "builtins.bytes"),
        *sorted(kinds, key=lambda kind: kind.__name__),
    ]


def _no_bytes() -> bytes:
    """Return `b""`, which is pickled as a call of `bytes` without arguments; with one it could fill the memory."""
    return b""


def check_plain(content: Any, *, file_name: str) -> None:
    """Refuse content that could not be loaded again without running code.

    Raises:
        CheckpointError: Naming the file, where in it, and the type that is in the way.
    """
    for where, kind in _strangers(content, ""):
        raise CheckpointError(
            f"`{file_name}` cannot be saved: `{where or 'its content'}` is a `{kind.__module__}.{kind.__qualname__}`, "
            "which only code could rebuild. Let `state_dict` return tensors, numbers, strings and containers of these. "
            "A class of tensors that is safe to load can be named to `torch.serialization.add_safe_globals`."
        )


def check_loaded(content: Any, *, num_bytes: int) -> None:
    """Refuse arrays and tensors that show memory which is not theirs, or more than there is.

    To be called before anybody touches what was loaded: an element type in a file may be given parts that lie outside
    of an array, which NumPy does not check.

    Args:
        content: What a file held.
        num_bytes: Size of the file.

    Raises:
        CheckpointError: Naming where in the content.
    """
    for where, kind in _impostors(content, "", num_bytes, set()):
        raise CheckpointError(f"`{where or 'its content'}` is a made-up {kind}")


def _impostors(content: Any, where: str, num_bytes: int, seen: set[int]) -> Iterator[tuple[str, str]]:
    if is_traceable_wrapper_subclass(content):  # quantised, say: its own size is that of what it stands for
        for name in content.__tensor_flatten__()[0]:
            yield from _impostors(getattr(content, name), f"{where}.{name}", num_bytes, seen)
    elif isinstance(content, torch.Tensor):
        if content.layout == torch.strided and content.numel() * content.element_size() > num_bytes:
            yield where, "tensor, larger than the file"
    elif isinstance(content, (np.ndarray, np.generic, np.dtype)):
        element = content if isinstance(content, np.dtype) else content.dtype
        if element.names is not None or element.subdtype is not None or element.hasobject:
            yield where, "array"
        elif isinstance(content, np.ndarray) and content.nbytes > num_bytes:
            yield where, "array, larger than the file"
    elif isinstance(content, _CONTAINERS) and id(content) not in seen:
        seen.add(id(content))
        for name, value in _members(content):
            yield from _impostors(value, f"{where}.{name}" if where else str(name), num_bytes, seen)


def _strangers(content: Any, where: str) -> Iterator[tuple[str, type]]:
    kind = type(content)
    if isinstance(content, torch.Tensor):
        if kind not in (torch.Tensor, torch.nn.Parameter) and kind not in _registered():
            yield where, kind
        return
    if kind in _LEAVES:
        return
    if isinstance(content, (np.ndarray, np.generic)):
        if content.dtype.kind not in _NUMPY_KINDS or (
            kind is not np.ndarray and not isinstance(content, np.generic)
        ):
            yield where, kind
        return
    if kind not in _CONTAINERS:
        yield where, kind
        return
    for name, value in _members(content):
        if isinstance(content, Mapping):
            yield from _strangers(name, f"{where} key")
        yield from _strangers(value, f"{where}.{name}" if where else str(name))


def _registered() -> list[object]:
    """Return what somebody has told torch to load, such as quantised tensors."""
    known = torch.serialization.get_safe_globals()
    return [entry[0] if isinstance(entry, tuple) else entry for entry in known]


def _members(content: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(content, Mapping):
        yield from content.items()
    else:
        values: Sequence[Any] = list(content)
        yield from enumerate(values)
