"""The file names in a checkpoint. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

SAFE_MODEL_NAME = "model"
SAFE_WEIGHTS_NAME = "model.safetensors"
SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
SAFE_WEIGHTS_PATTERN_NAME = "model{suffix}.safetensors"
MODEL_NAME = "pytorch_model"
WEIGHTS_NAME = "pytorch_model.bin"
WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json"
WEIGHTS_PATTERN_NAME = "pytorch_model{suffix}.bin"
OPTIMIZER_NAME = "optimizer"
RNG_STATE_NAME = "random_states"
SAMPLER_NAME = "sampler"
SCALER_NAME = "scaler.pt"
SCHEDULER_NAME = "scheduler"
SHARDED_MODEL_NAME = "pytorch_model_fsdp"
ENGINE_NAME = MODEL_NAME
"""An engine that writes its own files has a folder with the name of a weight file."""
METADATA_NAME = ".metadata"
MANIFEST_NAME = "accel_checkpoint.json"
FOLDER_OF_CHECKPOINTS = "checkpoints"
PINNED_NAME = "pinned"
"""An empty file of this name in a checkpoint keeps retention from removing it."""
TEMPORARY_PREFIX = ".tmp-"
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".pkl")
OWN_MARK = "accel_format"
"""A key in our files of random states; files of other packages do not have it."""


@dataclass(frozen=True)
class FileKind:
    """The names of one kind of files, or folders, in a checkpoint.

    Attributes:
        template: The name, with `{index}`, or with `{_index}` if the first one has no number; then with `{rank}` if
            each rank has a separate file.
    """

    template: str

    def name(self, index: int = 0, rank: int = 0) -> str:
        """Return the name of one file."""
        return self.template.format(index=index, _index=f"_{index}" if index else "", rank=rank)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the names; its groups are the index and the rank."""
        pattern = re.escape(self.template).replace(r"\{_index\}", r"(?:_(\d+))?")
        return re.compile(re.sub(r"\\{(?:index|rank)\\}", r"(\\d+)", pattern))

    def numbers(self, names: Iterable[str]) -> list[int]:
        """Return the sorted indexes of the files of this kind among ``names``."""
        matches = (self.pattern.fullmatch(name) for name in names)
        return sorted({int(match[1] or 0) if match.re.groups else 0 for match in matches if match})

    def ranks(self, index: int, names: Iterable[str]) -> list[int]:
        """Return the sorted ranks that have a file with this index among ``names``."""
        matches = (self.pattern.fullmatch(name) for name in names)
        return sorted(int(match[2]) for match in matches if match and int(match[1] or 0) == index)


CHECKPOINTS = FileKind("checkpoint_{index}")
SAFE_MODELS = FileKind(f"{SAFE_MODEL_NAME}{{_index}}.safetensors")
OPTIMIZERS = FileKind(f"{OPTIMIZER_NAME}{{_index}}.bin")
SCHEDULERS = FileKind(f"{SCHEDULER_NAME}{{_index}}.bin")
SAMPLERS = FileKind(f"{SAMPLER_NAME}{{_index}}.bin")
SCALERS = FileKind(SCALER_NAME)
LOADERS = FileKind("dl_state_dict{_index}.bin")
LOADERS_OF_RANKS = FileKind("dl_state_dict_{index}_rank_{rank}.bin")
CUSTOM_OBJECTS = FileKind("custom_checkpoint_{index}.pkl")
RANDOM_STATES = FileKind(f"{RNG_STATE_NAME}_{{index}}.pkl")
"""Their index is the rank, as for gradients."""
ACCUMULATED_GRADIENTS = FileKind("accumulated_gradients_{index}.safetensors")
SHARDED_MODELS = FileKind(f"{SHARDED_MODEL_NAME}_{{index}}")
"""Folders with the parts of a state and its table."""
SHARDED_OPTIMIZERS = FileKind(f"{OPTIMIZER_NAME}_{{index}}")
MODEL_TABLES = FileKind(f"{SHARDED_MODELS.template}/{METADATA_NAME}")
OPTIMIZER_TABLES = FileKind(f"{SHARDED_OPTIMIZERS.template}/{METADATA_NAME}")
MODELS_OF_RANKS = FileKind(f"{SHARDED_MODEL_NAME}{{_index}}_rank{{rank}}.bin")
OPTIMIZERS_OF_RANKS = FileKind(f"{OPTIMIZER_NAME}{{_index}}_rank{{rank}}.bin")
ENGINES = FileKind(f"{ENGINE_NAME}{{_index}}")
"""Folders with the files of a model's engine."""


@dataclass(frozen=True)
class WeightFormat:
    """The file names of a model's weights in one format: a single file, the shards, and the index of the shards."""

    stem: str
    suffix: str

    @property
    def whole(self) -> str:
        """The single file."""
        return f"{self.stem}{self.suffix}"

    @property
    def index(self) -> str:
        """The index of the shards."""
        return f"{self.whole}.index.json"

    def shard(self, number: int, *, num_shards: int) -> str:
        """Return the name of shard ``number``, counted from 1."""
        return f"{self.stem}-{number:05d}-of-{num_shards:05d}{self.suffix}"

    def is_shard(self, name: str) -> bool:
        """Whether ``name`` is the name of a shard, of any number of shards."""
        pattern = rf"{re.escape(self.stem)}-\d{{5,}}-of-\d{{5,}}{re.escape(self.suffix)}"
        return re.fullmatch(pattern, name) is not None

    def matches(self, name: str) -> bool:
        """Whether `save_model` can write a file of this name in this format."""
        return name in (self.whole, self.index) or self.is_shard(name)


def weight_format(index: int, *, safe: bool) -> WeightFormat:
    """Return the weight file names of model ``index``."""
    stem, suffix = (SAFE_MODEL_NAME, ".safetensors") if safe else (MODEL_NAME, ".bin")
    return WeightFormat(f"{stem}_{index}" if index else stem, suffix)


SAFETENSORS = weight_format(0, safe=True)
PICKLED = weight_format(0, safe=False)
_WEIGHTS = re.compile(
    rf"(?:{SAFE_MODEL_NAME}|{MODEL_NAME})(?:_(\d+))?(?:-\d{{5,}}-of-\d{{5,}})?"
    r"\.(?:safetensors|bin)(?:\.index\.json)?"
)
_TRAINED = (OPTIMIZERS, SCALERS, MODELS_OF_RANKS, OPTIMIZERS_OF_RANKS)
_UNTRAINED = (
    SCHEDULERS,
    SAMPLERS,
    LOADERS,
    LOADERS_OF_RANKS,
    CUSTOM_OBJECTS,
    RANDOM_STATES,
    ACCUMULATED_GRADIENTS,
)
_IS_TRAINED = re.compile("|".join((_WEIGHTS.pattern, *(kind.pattern.pattern for kind in _TRAINED))))
_IS_OURS = re.compile(
    "|".join(
        (
            _IS_TRAINED.pattern,
            *(kind.pattern.pattern for kind in _UNTRAINED),
            re.escape(MANIFEST_NAME),
            rf"(?:{SHARDED_MODEL_NAME}|{OPTIMIZER_NAME})_\d+(?:/(?:\.metadata|__\d+_\d+\.distcp))?",
            rf"{ENGINE_NAME}(?:_\d+)?(?:/.+)?|latest|zero_to_(?:fp32|torch)\.py",
        )
    )
)


def checkpoint_number(name: str) -> int | None:
    """Return the number in a checkpoint's folder name, or None if it has none."""
    return next(iter(CHECKPOINTS.numbers([name])), None)


def numbers_of_models(names: Iterable[str]) -> list[int]:
    """Return the sorted indexes of the models that have weight files."""
    matches = (_WEIGHTS.fullmatch(name) for name in names)
    return sorted({int(match[1] or 0) for match in matches if match is not None})


def is_checkpoint_file(name: str) -> bool:
    """Whether a file of this name belongs to a checkpoint, and not to the user."""
    return _IS_OURS.fullmatch(name) is not None


def is_trained_file(name: str) -> bool:
    """Whether a file of this name has weights, or optimizer or scaler state: its values must be finite."""
    if name.endswith(".safetensors"):
        return ACCUMULATED_GRADIENTS.pattern.fullmatch(name) is None  # a scaled loss may overflow them
    return _IS_TRAINED.fullmatch(name) is not None
