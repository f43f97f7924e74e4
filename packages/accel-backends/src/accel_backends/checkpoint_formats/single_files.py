"""Save and load one model or optimizer of a sharded run, for loops that arrange their checkpoints themselves.

`Accelerator.save_state` writes the same files, and more, in one transaction. These functions write directly to the
folder; a sharded folder is complete when it has its table, which is written last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import accel_ops
from accel_backends.checkpoint_formats.full import FullFormat, FullState
from accel_backends.checkpoint_formats.named import NamedModel
from accel_backends.checkpoint_formats.protocol import (
    CheckpointFormat,
    PreparedModel,
    PreparedOptimizer,
    SaveChoices,
    SavedModel,
    refuse_local_states,
)
from accel_backends.checkpoint_formats.sharded import ShardedFormat
from accel_backends.fsdp.state import deferred_state
from accel_backends.module_lookup import is_peft_model
from accel_backends.unwrap import stepped_optimizer
from accel_checkpoint.file_names import (
    METADATA_NAME,
    SHARDED_MODEL_NAME,
    SHARDED_MODELS,
    SHARDED_OPTIMIZERS,
    FileKind,
)
from accel_checkpoint.files import force_to_disk, make_durably
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.saving.pending_files import PendingFile, TorchFile, write_file
from accel_checkpoint.strictness import Strictness
from accel_state import PartialState
from accel_state.errors import CheckpointError, ConfigError
from accel_state.logging import get_logger

if TYPE_CHECKING:
    from accel_backends.strategies.strategy import Strategy

logger = get_logger(__name__)

_FORMATS: dict[str, Callable[[], CheckpointFormat]] = {
    "FULL_STATE_DICT": FullFormat,
    "SHARDED_STATE_DICT": ShardedFormat,
}


def save_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: nn.Module,
    output_dir: str | os.PathLike[str],
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Save a prepared model. Every rank must call it.

    Args:
        fsdp_plugin: Its ``state_dict_type`` selects the format.
        accelerator: The `Accelerator` that prepared the model.
        model: The prepared model.
        output_dir: The folder, created if missing, for `pytorch_model_fsdp_0/` or `pytorch_model_fsdp.bin`.
        model_index: Index of the model.
        adapter_only: Not supported: all weights are saved, with one warning if the model has adapters.
        use_dcp: Must be True.

    Raises:
        CheckpointError: On every rank, if a file cannot be written.
    """
    _check(use_dcp)
    if adapter_only and is_peft_model(model):
        logger.warning_once(
            "`adapter_only=True` has no effect: the weights below the adapters are saved too. Save adapters alone with "
            "`save_pretrained` of the unwrapped model."
        )
    strategy: Strategy = accelerator.strategy
    choices, form = _choices(), _format(fsdp_plugin)
    state = form.model_state(_prepared(strategy, model))
    if isinstance(form, FullFormat):
        full = deferred_state(state, is_writer=choices.is_writer)
        files: Sequence[PendingFile] = [TorchFile(_full_name(model_index), full, is_writer=choices.is_writer)]
    else:
        files = form.model_files(state, index=model_index, choices=choices)
    _write(files, Path(output_dir))


def load_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: nn.Module,
    input_dir: str | os.PathLike[str],
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Load a checkpoint of `save_fsdp_model`, in any of its formats, into a prepared model. Every rank must call it.

    Raises:
        CheckpointError: If it is missing or damaged, or does not fit; names everything that does not.
    """
    _check(use_dcp)
    into = _prepared(accelerator.strategy, model)
    form = _format_of(Path(input_dir), SHARDED_MODELS, model_index)
    name = form.model_file(model_index)
    files = saved_files(_home(Path(input_dir), name))
    with Strictness().loading(name, f"model {model_index}"):
        with files:
            if isinstance(form, FullFormat):
                content = read_torch_file(files.path(_full_name(model_index)), mmap=True)
                saved: SavedModel = NamedModel(FullState(content), into)
            else:
                saved = form.open_model(files, into, index=model_index)
            misfits = saved.misfits()
        misfits = misfits or saved.load()
        if misfits:
            raise ValueError("; ".join(misfits))


def save_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    output_dir: str | os.PathLike[str],
    optimizer_index: int = 0,
    use_dcp: bool = True,
) -> None:
    """Save the optimizer of a prepared model in the format of `save_fsdp_model`. Every rank must call it."""
    _check(use_dcp)
    prepared = _prepared_optimizer(accelerator.strategy, optimizer, model)
    files = _format(fsdp_plugin).optimizer_files(prepared, index=optimizer_index, choices=_choices())
    _write(files, Path(output_dir))


def load_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    input_dir: str | os.PathLike[str],
    optimizer_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Load a checkpoint of `save_fsdp_optimizer`, in any of its formats. Every rank must call it.

    Raises:
        CheckpointError: If it is missing or damaged, or is the state of another optimizer.
    """
    _check(use_dcp)
    prepared = _prepared_optimizer(accelerator.strategy, optimizer, model)
    form = _format_of(Path(input_dir), SHARDED_OPTIMIZERS, optimizer_index)
    name = form.optimizer_file(optimizer_index)
    files = saved_files(_home(Path(input_dir), name))
    try:
        with files:
            load = form.open_optimizer(files, prepared, index=optimizer_index)
    except ValueError as misfit:
        inner = prepared.optimizer
        raise CheckpointError(
            f"`{name}` in `{files.folder}` does not fit the {type(inner).__name__}: {misfit}."
        ) from misfit
    load()


def _prepared(strategy: Strategy, model: nn.Module) -> PreparedModel:
    return PreparedModel(strategy, strategy.unwrap(model, keep_torch_compile=False))


def _prepared_optimizer(
    strategy: Strategy, optimizer: torch.optim.Optimizer, model: nn.Module
) -> PreparedOptimizer:
    inner = stepped_optimizer(optimizer)
    return PreparedOptimizer(strategy, inner, [_prepared(strategy, model).model])


def _check(use_dcp: bool) -> None:
    if not use_dcp:
        raise ConfigError(
            "`use_dcp=False` asks for files that only the same number of ranks can read, and is not supported. "
            "Leave it out."
        )


def _format(plugin: Any) -> CheckpointFormat:
    return _FORMATS[plugin.state_dict_type.name]()


def _format_of(folder: Path, sharded: FileKind, index: int) -> CheckpointFormat:
    """Return the format of the files in a folder, which may be the sharded folder itself."""
    name = sharded.name(index)
    if (_home(folder, name) / name / METADATA_NAME).is_file():
        return ShardedFormat()
    refuse_local_states([path.name for path in folder.glob("*.bin")])
    return FullFormat()


def _choices() -> SaveChoices:
    processes = PartialState()
    return SaveChoices(rank=processes.process_index, is_writer=processes.is_main_process, safe=False)


def _full_name(index: int) -> str:
    return f"{SHARDED_MODEL_NAME}.bin" if index == 0 else f"{SHARDED_MODEL_NAME}_{index}.bin"


def _home(folder: Path, name: str) -> Path:
    """Return the parent of the sharded folder, whether it or its parent was given."""
    return folder.parent if folder.name == name else folder


def _write(files: Sequence[PendingFile], folder: Path) -> None:
    """Write all files; the tables last, and only when all ranks have written what they refer to."""
    processes = PartialState()
    make_durably(folder)
    if processes.is_main_process:
        for table in _tables(files, ()):
            (folder / table.name).unlink(missing_ok=True)
    processes.wait_for_everyone()
    error = ""
    try:
        for file in files:
            write_file(file, folder, replace=True)
    except OSError as problem:
        error = f"rank {processes.process_index}: {problem}"
    reports = accel_ops.gather_object([json.dumps([error, [file.name for file in files]])])
    errors, names = zip(*map(json.loads, reports), strict=True)
    if failed := "; ".join(filter(None, errors)):
        raise CheckpointError(
            f"`{folder}` was not written ({failed}). Free space on the disk or fix its permissions, and save again."
        )
    if processes.is_main_process:
        for table in _tables(files, [name for of_rank in names for name in of_rank]):
            write_file(table, folder, replace=True)
            force_to_disk((folder / table.name).parent)
    processes.wait_for_everyone()


def _tables(files: Sequence[PendingFile], names: Collection[str]) -> list[PendingFile]:
    return [table for file in files if (table := file.table(names)) is not None]
