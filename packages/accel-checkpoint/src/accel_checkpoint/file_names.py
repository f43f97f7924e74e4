"""The file names in a checkpoint. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

SAFE_MODEL_NAME = "model"
SAFE_WEIGHTS_NAME = "model.safetensors"
SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
SAFE_WEIGHTS_PATTERN_NAME = "model{suffix}.safetensors"
MODEL_NAME = "pytorch_model"
WEIGHTS_NAME = "pytorch_model.bin"
WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json"
WEIGHTS_PATTERN_NAME = "pytorch_model{suffix}.bin"


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The file names of one format: a single file, the shards, and the index of the shards."""

    whole: str
    index: str
    pattern: str

    def shard(self, number: int, *, num_shards: int) -> str:
        """Return the name of shard ``number``, counted from 1."""
        return self.pattern.format(suffix=f"-{number:05d}-of-{num_shards:05d}")

    def is_shard(self, name: str) -> bool:
        """Whether ``name`` is the name of a shard, whatever their number."""
        head, _, tail = self.pattern.partition("{suffix}")
        return re.fullmatch(rf"{re.escape(head)}-\d{{5,}}-of-\d{{5,}}{re.escape(tail)}", name) is not None

    def owns(self, name: str) -> bool:
        """Whether `save_model` can write a file of this name in this format."""
        return name in (self.whole, self.index) or self.is_shard(name)


SAFETENSORS = WeightFormat(SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_PATTERN_NAME)
PICKLED = WeightFormat(WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_PATTERN_NAME)


OPTIMIZER_NAME = "optimizer"
RNG_STATE_NAME = "random_states"
SAMPLER_NAME = "sampler"
SCALER_NAME = "scaler.pt"
SCHEDULER_NAME = "scheduler"
MANIFEST_NAME = "accel_checkpoint.json"
FOLDER_OF_CHECKPOINTS = "checkpoints"
PINNED_NAME = "pinned"
"""An empty file of this name in a checkpoint keeps retention from removing it."""
TEMPORARY_PREFIX = ".tmp-"
OWN_MARK = "accel_format"
"""A key in our files of random states; those of other packages do not have it."""
LOADER_NAME = "dl_state_dict"
CUSTOM_NAME = "custom_checkpoint"

_NUMBERED_FOLDER = re.compile(r"checkpoint_(\d+)")
_RANDOM_STATES = re.compile(rf"{RNG_STATE_NAME}_(\d+)\.pkl")
_GRADIENTS = re.compile(r"accumulated_gradients_(\d+)\.safetensors")
_CUSTOM = re.compile(rf"{CUSTOM_NAME}_(\d+)\.pkl")
_LOADER_OF_RANK = re.compile(rf"{LOADER_NAME}_\d+_rank_\d+\.bin")
_NUMBERED = {
    stem: re.compile(rf"{stem}(?:_(\d+))?\.bin")
    for stem in (OPTIMIZER_NAME, SCHEDULER_NAME, SAMPLER_NAME, LOADER_NAME)
}
METADATA_NAME = ".metadata"
PART_SUFFIX = ".distcp"
SHARDED_MODEL_NAME = "pytorch_model_fsdp"
ENGINE_NAME = MODEL_NAME
"""An engine that saves by itself has a folder of the name that a file of weights would have."""
_SHARDED = {stem: re.compile(rf"{stem}_(\d+)/\.metadata") for stem in (SHARDED_MODEL_NAME, OPTIMIZER_NAME)}
_OF_RANK = {
    stem: re.compile(rf"{stem}(?:_(\d+))?_rank(\d+)\.bin") for stem in (SHARDED_MODEL_NAME, OPTIMIZER_NAME)
}
_PARTS = re.compile(rf"(?:{SHARDED_MODEL_NAME}|{OPTIMIZER_NAME})_\d+(?:/(?:\.metadata|__\d+_\d+\.distcp))?")
_ENGINE = re.compile(rf"{ENGINE_NAME}(?:_\d+)?(?:/.+)?|latest|zero_to_(?:fp32|torch)\.py")
_WEIGHTS = re.compile(
    rf"(?:{SAFE_MODEL_NAME}|{MODEL_NAME})(?:_(\d+))?(?:-\d{{5,}}-of-\d{{5,}})?"
    r"\.(?:safetensors|bin)(?:\.index\.json)?"
)


def checkpoint_name(number: int) -> str:
    """Return the folder name of checkpoint ``number``."""
    return f"checkpoint_{number}"


def checkpoint_number(name: str) -> int | None:
    """Return the number in a checkpoint's folder name, or None if it has none."""
    found = _NUMBERED_FOLDER.fullmatch(name)
    return None if found is None else int(found[1])


def weight_format(index: int, *, safe: bool) -> WeightFormat:
    """Return the weight file names of model ``index``."""
    stem, suffix = (SAFE_MODEL_NAME, ".safetensors") if safe else (MODEL_NAME, ".bin")
    stem = stem if index == 0 else f"{stem}_{index}"
    whole = f"{stem}{suffix}"
    return WeightFormat(whole=whole, index=f"{whole}.index.json", pattern=f"{stem}{{suffix}}{suffix}")


def numbered_file(stem: str, index: int) -> str:
    """Return `optimizer.bin`, `optimizer_1.bin`, … for the stem `optimizer`."""
    return f"{stem}.bin" if index == 0 else f"{stem}_{index}.bin"


def random_states_file(rank: int) -> str:
    """Return the name of a rank's random state file."""
    return f"{RNG_STATE_NAME}_{rank}.pkl"


def gradients_file(rank: int) -> str:
    """Return the name of the file with a rank's accumulated gradients."""
    return f"accumulated_gradients_{rank}.safetensors"


def loader_of_rank_file(index: int, rank: int) -> str:
    """Return the file name of loader ``index`` for a rank that has its own state."""
    return f"{LOADER_NAME}_{index}_rank_{rank}.bin"


def custom_file(index: int) -> str:
    """Return the file name of custom object ``index``."""
    return f"{CUSTOM_NAME}_{index}.pkl"


def sharded_folder(stem: str, index: int) -> str:
    """Return the folder that holds the state of a model or optimizer in parts."""
    return f"{stem}_{index}"


def engine_folder(index: int) -> str:
    """Return the folder that holds what the engine of a model saves."""
    return ENGINE_NAME if index == 0 else f"{ENGINE_NAME}_{index}"


def numbers_of_sharded(stem: str, names: Iterable[str]) -> list[int]:
    """Return the sorted indexes of the models or optimizers whose parts have a table among these files."""
    return _numbers(_SHARDED[stem], names)


def file_of_rank(stem: str, index: int, rank: int) -> str:
    """Return the file in which a rank keeps what it holds of a model or optimizer, for itself."""
    return f"{stem}_rank{rank}.bin" if index == 0 else f"{stem}_{index}_rank{rank}.bin"


def numbers_of_ranked(stem: str, names: Iterable[str]) -> list[int]:
    """Return the sorted indexes of the models or optimizers of which ranks have files of their own."""
    return _numbers(_OF_RANK[stem], names)


def ranks_of(stem: str, index: int, names: Iterable[str]) -> list[int]:
    """Return the sorted ranks that have a file of their own of a model or optimizer."""
    matches = (_OF_RANK[stem].fullmatch(name) for name in names)
    return sorted(int(found[2]) for found in matches if found is not None and int(found[1] or 0) == index)


def numbers_of(stem: str, names: Iterable[str]) -> list[int]:
    """Return the sorted indexes of the files `<stem>.bin` and `<stem>_<index>.bin`."""
    return _numbers(_NUMBERED[stem], names)


def numbers_of_models(names: Iterable[str]) -> list[int]:
    """Return the sorted indexes of the models that have weight files."""
    return _numbers(_WEIGHTS, names)


def numbers_of_custom(names: Iterable[str]) -> list[int]:
    """Return the sorted indexes of the custom objects that have a file."""
    return _numbers(_CUSTOM, names)


def ranks_of_random_states(names: Iterable[str]) -> list[int]:
    """Return the sorted ranks that have a random state file."""
    return _numbers(_RANDOM_STATES, names)


def is_checkpoint_file(name: str) -> bool:
    """Whether a file of this name belongs to a checkpoint, and not to the user."""
    if name in (MANIFEST_NAME, SCALER_NAME) or _PARTS.fullmatch(name) or _ENGINE.fullmatch(name):
        return True
    return any(
        p.fullmatch(name)
        for p in (
            _WEIGHTS,
            _CUSTOM,
            _RANDOM_STATES,
            _GRADIENTS,
            _LOADER_OF_RANK,
            *_NUMBERED.values(),
            *_OF_RANK.values(),
        )
    )


def is_trained_file(name: str) -> bool:
    """Whether a file of this name holds weights, or the state of an optimizer or scaler: its values must be finite."""
    if name.endswith(".safetensors"):
        return _GRADIENTS.fullmatch(name) is None  # those of a scaled loss may overflow
    patterns = (_WEIGHTS, _NUMBERED[OPTIMIZER_NAME], *_OF_RANK.values())
    return name == SCALER_NAME or any(pattern.fullmatch(name) for pattern in patterns)


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    matches = (pattern.fullmatch(name) for name in names)
    return sorted({int(found[1] or 0) for found in matches if found is not None})
