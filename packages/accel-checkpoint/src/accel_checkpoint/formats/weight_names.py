"""The established names of weight files."""

from __future__ import annotations

import re
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
