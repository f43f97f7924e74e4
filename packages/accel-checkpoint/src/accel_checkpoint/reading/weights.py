"""The weights of one model in a checkpoint, memory-mapped until they are copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accel_checkpoint.file_names import weight_format
from accel_checkpoint.formats.weight_files import CheckpointFile, checkpoint_files, read_weights
from accel_checkpoint.reading.checked import checked_file
from accel_state.errors import CheckpointError


def files_of_model(folder: Path, index: int) -> list[CheckpointFile]:
    """Return the weight files of a model: safetensors before `.bin`, one file before shards.

    Raises:
        CheckpointError: If there are none, or an index names anything but a regular file beside it.
    """
    for names in (weight_format(index, safe=True), weight_format(index, safe=False)):
        for name in (names.whole, names.index):
            if (folder / name).is_symlink() or (folder / name).exists():
                files = checkpoint_files(checked_file(folder, name))
                for file in files if name == names.index else ():
                    checked_file(folder, file.path.name)
                return files
    raise CheckpointError(
        f"`{weight_format(index, safe=True).whole}` is missing in the checkpoint `{folder}`. "
        "Load another checkpoint, or copy this one again with all its files."
    )


@contextmanager
def open_weights(files: list[CheckpointFile]) -> Iterator[dict[str, Any]]:
    """Yield the state dict in ``files``; its tensors are mapped, so copy them before the files are removed."""
    state: dict[str, Any] = {}
    for file in files:
        content = read_weights(file.path)
        missing = sorted((file.names or frozenset()) - content.keys())
        if missing:
            raise CheckpointError(
                f"`{file.path}` lacks `{missing[0]}`, which the index lists for it. Copy the checkpoint again."
            )
        state.update({name: content[name] for name in file.names or content})
    yield state
