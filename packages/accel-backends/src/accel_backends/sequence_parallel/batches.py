"""Cuts batches whose sequences ranks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from accel_backends.sequence_parallel.cut import SequenceCut
from accel_state.errors import ConfigError

#: The label of tokens that do not count.
IGNORED = -100


def whole_batch(batch: Any) -> dict[str, Any]:
    """Return a batch ready to be cut: nothing in it refers to the neighbour or the place of a token.

    ``labels`` become ``shift_labels``, one token ahead, since the last label of a part is the first of the next.
    ``position_ids`` are added where there are none.

    Args:
        batch: Tensors of ``(batch, length, ...)``, and whatever else.

    Raises:
        ConfigError: If it is no dict with ``input_ids``.
    """
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        found = sorted(batch) if isinstance(batch, Mapping) else f"`{type(batch).__name__}`"
        raise ConfigError(
            "A batch whose sequences are shared must be a dict with `input_ids`, `labels` and, where samples are "
            f"packed, `position_ids`, got {found}."
        )
    ids = batch["input_ids"]
    whole = {name: value for name, value in batch.items() if name != "labels"}
    if "labels" in batch:
        whole.setdefault("shift_labels", F.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:].contiguous())
    whole.setdefault("position_ids", torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1))
    return whole


def missing_tokens(length: int, cut: SequenceCut) -> int:
    """Return by how many tokens sequences must grow until they can be cut."""
    return -length % cut.num_chunks


def padded_batch(whole: Mapping[str, Any], num_missing: int) -> dict[str, Any]:
    """Return a batch whose sequences have ``num_missing`` more tokens at their end, which count nowhere."""
    length = whole["input_ids"].shape[1]
    return {
        name: _padded(value, num_missing, IGNORED if name == "shift_labels" else 0)
        if _is_along(value, length)
        else value
        for name, value in whole.items()
    }


def part_of_batch(whole: Mapping[str, Any], cut: SequenceCut) -> dict[str, Any]:
    """Return this rank's part of a batch; what is not as long as the sequences stays whole."""
    length = whole["input_ids"].shape[1]
    return {
        name: cut.part_of(value, 1) if _is_along(value, length) else value for name, value in whole.items()
    }


def check_length(length: int, cut: SequenceCut, *, setting: str) -> None:
    """Refuse sequences that cannot be cut.

    Args:
        length: Their number of tokens.
        cut: How they are cut.
        setting: The name of the setting that shares them.

    Raises:
        ConfigError: Naming the numbers.
    """
    if length % cut.num_chunks:
        raise ConfigError(
            f"Sequences of {length} tokens cannot be shared by {cut.size} ranks (`{setting}`). Pad them to a multiple "
            f"of {cut.num_chunks}."
        )


def _is_along(value: Any, length: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[1] == length


def _padded(value: Tensor, num_missing: int, fill: int) -> Tensor:
    return torch.cat([value, value.new_full((len(value), num_missing, *value.shape[2:]), fill)], dim=1)
