"""Plain data: the content that a checkpoint file may have, because it loads without running code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.formats.torch_files import CONTAINERS, LEAVES, harmless_globals, members_of
from accel_state.errors import CheckpointError

_NUMPY_KINDS = "biufc"


def check_plain(content: Any, *, file_name: str) -> None:
    """Reject content that could not be loaded again without running code.

    Raises:
        CheckpointError: If there is any; names the file, the path of the value, and its type.
    """
    for where, kind in _unsafe_values(content, ""):
        raise CheckpointError(
            f"`{file_name}` cannot be saved: `{where or 'its content'}` is a `{kind.__module__}.{kind.__qualname__}`, "
            "which could not be loaded without running code. Let `state_dict` return tensors, numbers, strings and "
            "containers of these. Register other classes that are safe to load with "
            "`torch.serialization.add_safe_globals`, and what they are made of."
        )


def _unsafe_values(content: Any, where: str) -> Iterator[tuple[str, type]]:
    kind = type(content)
    if isinstance(content, torch.Tensor):
        if kind not in (torch.Tensor, torch.nn.Parameter) and kind not in _registered():
            yield where, kind
        return
    if kind in LEAVES or kind is DeferredTensor:
        return
    if isinstance(content, (np.ndarray, np.generic)):
        if content.dtype.kind not in _NUMPY_KINDS or (
            kind is not np.ndarray and not isinstance(content, np.generic)
        ):
            yield where, kind
        return
    if kind not in CONTAINERS:
        if kind not in _registered() or not _is_loadable(content):
            yield where, kind
        return
    for name, value in members_of(content):
        if isinstance(content, Mapping):
            yield from _unsafe_values(name, f"{where} key")
        yield from _unsafe_values(value, f"{where}.{name}" if where else str(name))


def _registered() -> list[object]:
    """Return the classes registered with torch as safe to load, such as quantized tensors."""
    known = torch.serialization.get_safe_globals()
    return [entry[0] if isinstance(entry, tuple) else entry for entry in known]


def _is_loadable(content: Any) -> bool:
    """Whether ``torch.load(weights_only=True)`` can build a value of a registered class, which is not so of a deque."""
    file = io.BytesIO()
    try:
        torch.save(content, file)
        file.seek(0)
        with torch.serialization.safe_globals(harmless_globals()):
            torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError):
        return False
    return True
