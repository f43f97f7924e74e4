"""The weights of one model of a checkpoint, left in their files until they are copied into the model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel.checkpoints.files import regular_file
from accel.checkpoints.layout import weight_format
from accel.checkpoints.strictness import Strictness
from accel.checkpoints.torch_file import read_torch_file
from accel_backends import Strategy
from accel_bigmodel.formats.safetensor_files import open_safetensors
from accel_bigmodel.loading.checkpoint_files import CheckpointFile, checkpoint_files
from accel_bigmodel.offload.placeholders import weight_of
from accel_bigmodel.tensors.shared_tensors import id_tensor_view
from accel_state.errors import CheckpointError


def files_of_model(folder: Path, index: int) -> list[CheckpointFile]:
    """Return the weight files of a model: safetensors before `.bin`, one file before shards.

    Raises:
        CheckpointError: If there are none, or an index names what is no plain file beside it.
    """
    for names in (weight_format(index, safe=True), weight_format(index, safe=False)):
        for name in (names.whole, names.index):
            if (folder / name).is_symlink() or (folder / name).exists():
                files = checkpoint_files(regular_file(folder, name))
                for file in files:
                    regular_file(folder, file.path.name)
                return files
    raise CheckpointError(
        f"`{weight_format(index, safe=True).whole}` is missing in the checkpoint `{folder}`."
    )


@contextmanager
def open_weights(files: list[CheckpointFile]) -> Iterator[dict[str, Any]]:
    """Give the state dict that is spread over ``files``; its tensors are mapped, and good inside the context."""
    state: dict[str, Any] = {}
    with ExitStack() as stack:
        for file in files:
            content = _content_of(file.path, stack)
            missing = sorted((file.names or frozenset()) - content.keys())
            if missing:
                raise CheckpointError(f"`{file.path}` lacks `{missing[0]}`, which the index promises in it.")
            state.update({name: content[name] for name in file.names or content})
        yield state


def load_weights(
    strategy: Strategy,
    model: nn.Module,
    state: Mapping[str, Any],
    *,
    file_name: str,
    index: int,
    strict: Strictness,
) -> None:
    """Copy a state into a model, naming what is missing or left over."""
    bare = strategy.unwrap(model, keep_torch_compile=False)
    into = f"model {index} ({type(bare).__name__})"
    with strict.loading(file_name, into), _silent_about_placeholders():
        _refuse_nowhere(bare, into=into)
        outcome = strategy.load_model_state(model, state, strict=False)
        missing = list(outcome.missing_keys) if outcome is not None else []
        left_over = list(outcome.unexpected_keys) if outcome is not None else []
        if missing:
            tied = _second_names(strategy.model_state(model), state)
            missing = [name for name in missing if name not in tied]
        if missing or left_over:
            parts = [f"it lacks {_listed(missing)}"] if missing else []
            parts += [f"it has {_listed(left_over)}, which the model has not"] if left_over else []
            strict.complain(f"`{file_name}` does not fit model {index}: {'; '.join(parts)}.")


def _refuse_nowhere(model: nn.Module, *, into: str) -> None:
    """Refuse parameters that values cannot be copied into; those of offloaded weights can take them."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta and weight_of(parameter) is None:
            raise CheckpointError(
                f"`{name}` of {into} is on the meta device, where there is no memory for values. "
                "Give it some first, for example with `to_empty`."
            )


@contextmanager
def _silent_about_placeholders() -> Iterator[None]:
    """Keep torch from saying that nothing is copied into an offloaded weight, since something is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter in the checkpoint")
        yield


def _content_of(path: Path, stack: ExitStack) -> Mapping[str, Any]:
    if path.suffix == ".safetensors":
        reader = stack.enter_context(open_safetensors(path))
        return {name: reader.read(name) for name in reader.keys()}  # noqa: SIM118 (a reader is no mapping)
    content = read_torch_file(path, mmap=True)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"`{path}` holds a {type(content).__name__}, not a state dict.")
    return content


def _second_names(own: Mapping[str, Any], loaded: Mapping[str, Any]) -> set[str]:
    """Return the names of the model whose tensor was loaded under another name, as of tied weights."""
    windows = {
        id_tensor_view(own[name]) for name in loaded if name in own and isinstance(own[name], torch.Tensor)
    }
    tensors = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
    return {name for name, tensor in tensors.items() if id_tensor_view(tensor) in windows}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"`{name}`" for name in names[:5]) + more
