"""Each rank writes what it holds, as it holds it, and is the only one to read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, cast

from accel_backends.checkpoint_formats.own_state import OwnState
from accel_backends.checkpoint_formats.protocol import (
    CheckpointFormat,
    Files,
    Parameters,
    SaveChoices,
    SavedState,
)
from accel_checkpoint.file_names import (
    OPTIMIZER_NAME,
    SHARDED_MODEL_NAME,
    file_of_rank,
    numbers_of_ranked,
    ranks_of,
)
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.saved_files import SavedFiles
from accel_checkpoint.saving.pending_files import TorchFile
from accel_state.errors import CheckpointError


class PerRankFormat(CheckpointFormat):
    """`pytorch_model_fsdp_rank0.bin`, `optimizer_rank0.bin` and so on: the parts of flat parameters as they are.

    Nothing is gathered. Only as many ranks read them, with the same model, cut in the same way.
    """

    name: ClassVar[str] = "per_rank"
    needs_shared_disk: ClassVar[bool] = False
    is_per_rank: ClassVar[bool] = True

    def model_numbers(self, names: Collection[str]) -> list[int]:
        """Return the indexes of the models that have files in this format."""
        return numbers_of_ranked(SHARDED_MODEL_NAME, names)

    def model_files(self, state: Mapping[str, Any], *, index: int, choices: SaveChoices) -> Files:
        """Return the file of this rank, for what `Strategy.own_model_state` returned."""
        return _file(SHARDED_MODEL_NAME, cast(OwnState, state), index)

    def optimizer_files(
        self, state: Mapping[str, Any], parameters: Parameters, *, index: int, choices: SaveChoices
    ) -> Files:
        """Return the file of this rank, for what `Strategy.own_optimizer_state` returned."""
        return _file(OPTIMIZER_NAME, cast(OwnState, state), index)

    def open_model(self, files: SavedFiles, *, index: int) -> SavedParts:
        """Return the parts; each rank reads its own."""
        return SavedParts(files, index)

    def optimizer_numbers(self, names: Collection[str]) -> list[int]:
        """Return the indexes of the optimizers that have files in this format."""
        return numbers_of_ranked(OPTIMIZER_NAME, names)

    def model_file(self, index: int) -> str:
        """Return the name that messages use for the files of a model."""
        return file_of_rank(SHARDED_MODEL_NAME, index, 0)

    def optimizer_file(self, index: int) -> str:
        """Return the name that messages use for the files of an optimizer."""
        return file_of_rank(OPTIMIZER_NAME, index, 0)

    def read_optimizer(self, files: SavedFiles, parameters: Parameters, *, index: int) -> Mapping[str, Any]:
        """Return the state that this rank wrote; ``parameters`` gives what `Strategy.own_optimizer_state` returned."""
        return _read(files, OPTIMIZER_NAME, cast(OwnState, parameters()), index)


class SavedParts(SavedState):
    """What each rank wrote of a model.

    Args:
        files: The files of the checkpoint.
        index: Which model it is.
    """

    is_per_rank: ClassVar[bool] = True

    def __init__(self, files: SavedFiles, index: int) -> None:
        self._files = files
        self._index = index

    def shapes(self) -> Mapping[str, tuple[int, ...] | None]:
        """Return nothing: what matters is which part of the whole a rank holds, and `read` compares that."""
        return {}

    def read(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values that this rank wrote, mapped from its file.

        Raises:
            CheckpointError: If another number of ranks wrote them, or of a model that was cut otherwise.
        """
        return _read(self._files, SHARDED_MODEL_NAME, cast(OwnState, own), self._index)


def _file(stem: str, own: OwnState, index: int) -> Files:
    content = {"rank": own.rank, "num_ranks": own.num_ranks, "cut": own.cut, "values": dict(own)}
    return Files([TorchFile(file_of_rank(stem, index, own.rank), content)])


def _read(files: SavedFiles, stem: str, own: OwnState, index: int) -> Mapping[str, Any]:
    name = file_of_rank(stem, index, own.rank)
    ranks = ranks_of(stem, index, files.names)
    # A rank that has no file learns from another's how many there were.
    found = file_of_rank(stem, index, ranks[0]) if ranks and own.rank not in ranks else name
    content = read_torch_file(files.path(found), mmap=True)
    if content["num_ranks"] != own.num_ranks:
        raise _misfit(found, f"it is of {content['num_ranks']} ranks, and this run has {own.num_ranks}")
    if found != name:
        raise CheckpointError(
            f"`{name}`, the part of rank {own.rank}, is missing in `{files.folder}`. Copy it there."
        )
    if own.cut is None:
        raise _misfit(
            name, "it holds parts of flat parameters, as `fsdp_version=1` has them, and this run has none"
        )
    differing = [key for key in {**content["cut"], **own.cut} if content["cut"].get(key) != own.cut.get(key)]
    if differing:
        raise _misfit(
            name, f"`{differing[0]}` was cut from other tensors, or in another way, than in this run"
        )
    values: Mapping[str, Any] = content["values"]
    return values


def _misfit(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"`{name}` cannot be loaded: {reason}. What `LOCAL_STATE_DICT` saved can be read by as many ranks alone, with "
        'the same model and plugin. Load it so, and save with `state_dict_type="SHARDED_STATE_DICT"`, which any '
        "number of ranks reads."
    )
