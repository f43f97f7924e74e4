"""The files that an engine writes, collected instead of written, so that the checkpoint can write them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from accel_backends.strategies.deepspeed.checkpoints.flat_groups import has_fp32_copies, has_swapped_states
from accel_checkpoint.saving.pending_files import FileSink, PendingFile, TorchFile
from accel_state.errors import CheckpointError, ConfigError

SAVE_ARGUMENTS = ("client_state", "exclude_frozen_parameters", "save_latest")
"""What `save_state` hands on to `DeepSpeedEngine.save_checkpoint`."""


def files_of_engine(engine: Any, folder: str, options: Mapping[str, Any]) -> list[PendingFile]:
    """Return the files that this rank's engine saves; every rank must call it.

    DeepSpeed's own save runs, with its collectives, but hands its files over: nothing touches the disk between two
    collectives, where an error would leave the other ranks waiting.

    Args:
        engine: The engine.
        folder: Name of its folder in the checkpoint: DeepSpeed's tag.
        options: Further arguments of `DeepSpeedEngine.save_checkpoint`; see `SAVE_ARGUMENTS`.

    Raises:
        CheckpointError: If the engine keeps a part of its state where this does not reach.
    """
    _refuse_other_writers(engine)
    chosen = {name: value for name, value in options.items() if name != "save_latest"}
    files = _CollectedFiles()
    writer, engine.checkpoint_engine = engine.checkpoint_engine, files
    # DeepSpeed 0.19.8 copies its scripts to the disk by itself; `scripts` returns them as files of the checkpoint.
    engine._copy_recovery_script = lambda _path: None
    try:
        engine.save_checkpoint(".", tag=folder, save_latest=False, **chosen)
    finally:
        engine.checkpoint_engine = writer
        del engine._copy_recovery_script
    return [
        TorchFile(name, _detached(content), must_be_plain=False, is_trained=True)
        for name, content in files.content.items()
    ]


def scripts(engine: Any) -> list[PendingFile]:
    """Return the scripts that DeepSpeed adds to a checkpoint, which turn it into plain weights."""
    if not engine.zero_optimization():
        return []
    import deepspeed.utils

    home = Path(deepspeed.utils.__file__).parent
    names = [name for name in ("zero_to_fp32.py", "zero_to_torch.py") if (home / name).is_file()]
    return [TextFile(name, (home / name).read_text(encoding="utf-8")) for name in names]


def _refuse_other_writers(engine: Any) -> None:
    if has_swapped_states(engine):
        raise CheckpointError(
            '`offload_optimizer` with `"device": "nvme"` keeps the states of the optimizer in files, which DeepSpeed '
            "0.19.8 saves but does not load again. Leave `checkpoint_format` out, or save in the format `full`."
        )
    if has_fp32_copies(engine):
        raise CheckpointError(
            "Without ZeRO in bf16 or fp16, DeepSpeed's own format is not read here. Leave `checkpoint_format` out."
        )
    if engine.has_moe_layers:
        raise CheckpointError(
            "DeepSpeed's own layers with experts (`deepspeed.moe`) have files by expert, which are not saved here. "
            "Save with the engine's `save_checkpoint`, or use `deepspeed_moe_layer_cls_names` with plain layers."
        )
    if getattr(engine, "mp_world_size", 1) > 1:
        raise CheckpointError(
            "In DeepSpeed's own format each of the ranks that share layers (`tp_size`) writes its parts of them, which "
            "are not read here. Leave `checkpoint_format` out, or save in the format `full`."
        )
    kind = type(engine.checkpoint_engine).__name__
    if kind != "TorchCheckpointEngine":
        raise ConfigError(
            f"The DeepSpeed config chooses a writer of its own for checkpoints (`{kind}`), but `save_state` writes the "
            "files itself. Remove `checkpoint.writer` and `datastates_ckpt` from the config."
        )


class _CollectedFiles:
    """What stands in for `deepspeed.runtime.checkpoint_engine.CheckpointEngine` during a save."""

    name = "accel"

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}

    def create(self, info: Any) -> None:
        pass

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def save(self, state_dict: Any, path: str) -> None:
        self.content[str(PurePosixPath(path))] = state_dict

    def commit(self, info: Any) -> bool:
        return True

    def is_decoupled(self) -> bool:
        return False

    def is_data_parallel_writer(self, rank: int) -> bool:
        return rank == 0


@dataclass(frozen=True)
class TextFile(PendingFile):
    """A file of text."""

    name: str
    content: str

    def write(self, sink: FileSink) -> str:
        """Write the content."""
        sink.write(self.content.encode())
        return ""


def _detached(content: Any) -> Any:
    """Return the content with copies of the objects that are neither tensors nor containers, as they are now."""
    if type(content) in (dict, OrderedDict):
        return type(content)((name, _detached(value)) for name, value in content.items())
    if type(content) in (list, tuple):
        return type(content)(_detached(value) for value in content)
    is_plain = isinstance(content, torch.Tensor) or not hasattr(content, "__dict__")
    return content if is_plain else copy.copy(content)
