"""The functions that users import from `accel.checkpointing` and `accel.utils`."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from accel_checkpoint.file_names import CUSTOM_OBJECTS
from accel_checkpoint.formats.torch_files import harmless_globals, read_torch_file, trusted_files
from accel_checkpoint.saving.pending_files import FileSink, SafetensorsFile, TorchFile, write_file
from accel_checkpoint.saving.staging import temporary_name
from accel_state import PartialState
from accel_state.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)
TORCH_SAFE_GLOBALS = harmless_globals()
"""Globals that files may use in addition to the globals of `torch.load(weights_only=True)`."""


def save(obj: Any, f: Any, save_on_each_node: bool = False, safe_serialization: bool = False) -> None:
    """Write ``obj`` to a file atomically, on the main process only; the other ranks do not wait.

    Args:
        obj: The object to write; a dict of tensors with ``safe_serialization``.
        f: A path, or a file object that `torch.save` accepts.
        save_on_each_node: Write the file on the main process of each node.
        safe_serialization: Use safetensors instead of `torch.save`. Tensors that share memory are stored once, under
            the first name; a warning lists the names that the file does not have.
    """
    state = PartialState()
    if not (state.is_local_main_process if save_on_each_node else state.is_main_process):
        return
    if not isinstance(f, (str, os.PathLike)):
        torch.save(obj, f)
        return
    path = Path(f)
    hidden = path.with_name(temporary_name(path.name, os.getpid()))
    try:
        with FileSink(hidden) as sink:
            if safe_serialization:
                file = SafetensorsFile.of(path.name, obj, is_trained=False)
                _warn_of_shared(obj.keys() - file.tensors.keys())
                file.write(sink)
            else:
                torch.save(obj, sink)  # type: ignore[arg-type]
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)


def _warn_of_shared(removed: Iterable[str]) -> None:
    if names := ", ".join(f"`{name}`" for name in sorted(removed)):
        logger.warning(
            "Removed shared tensors %s: they share memory with other tensors, stored once under the first name.",
            names,
        )


def load(f: Any, map_location: Any = None, *, trusted: bool = False, **kwargs: Any) -> Any:
    """Load a `torch.save` file that contains only tensors and plain values.

    Args:
        f: The path, or an open file that can seek.
        map_location: As for `torch.load`.
        trusted: Read the file also with a torch before 2.10, which it can make run code; see `trusted_files`.
        **kwargs: As for `torch.load`, except that `weights_only` is always true.

    Raises:
        ConfigError: If ``weights_only=False`` is passed, or ``map_location`` is not a device.
        CheckpointError: If the file is damaged or contains anything else; also a `pickle.UnpicklingError`.
    """
    if kwargs.pop("weights_only", True) is not True:
        raise ConfigError(
            "`load` never unpickles freely: `weights_only` must be True. For files that you trust, call `torch.load`."
        )
    check_map_location(map_location)
    source = f if hasattr(f, "read") else Path(f)
    try:
        with trusted_files(trusted):
            return read_torch_file(source, archives_only=False, map_location=map_location, **kwargs)
    except CheckpointError as error:
        raise _UnreadableFile(str(error)) from error


def check_map_location(location: Any) -> None:
    """Check that ``location`` is a device, or another value that `torch.load` takes.

    Raises:
        ConfigError: If it is not.
    """
    try:
        if location is not None and not isinstance(location, Mapping) and not callable(location):
            torch.device(str(location))
    except RuntimeError as error:
        raise ConfigError(
            f"`map_location` must name a device such as `cpu` or `cuda:0`, got `{location}`."
        ) from error


class _UnreadableFile(CheckpointError, pickle.UnpicklingError):
    """Raised by `load`; also the class that `torch.load` raises for the same file."""


def save_custom_state(
    obj: Any, path: str | os.PathLike[str], index: int = 0, save_on_each_node: bool = False
) -> None:
    """Write the state of ``obj`` to `custom_checkpoint_<index>.pkl` in the folder ``path``."""
    state = PartialState()
    if state.is_local_main_process if save_on_each_node else state.is_main_process:
        write_file(TorchFile(CUSTOM_OBJECTS.name(index), obj.state_dict()), Path(path), replace=True)


def load_custom_state(obj: Any, path: str | os.PathLike[str], index: int = 0) -> None:
    """Load `custom_checkpoint_<index>.pkl` in the folder ``path`` into ``obj``.

    Raises:
        CheckpointError: If the file is damaged or contains more than plain data.
    """
    obj.load_state_dict(read_torch_file(Path(path) / CUSTOM_OBJECTS.name(index)))


__all__: Sequence[str] = ["TORCH_SAFE_GLOBALS", "load", "load_custom_state", "save", "save_custom_state"]
