"""Compare the names and shapes of a checkpoint and a model."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from accel_state.errors import CheckpointError, did_you_mean

logger = logging.getLogger(__name__)
_NUM_LISTED = 5


@dataclass(frozen=True, slots=True)
class Match:
    """The differences between a checkpoint and a model.

    Args:
        missing: Names in the model that are not in the checkpoint.
        unexpected: Names in the checkpoint that are not in the model.
        wrong_shapes: Differences between shapes, one line each.
        num_common: The number of names in both.
    """

    missing: list[str]
    unexpected: list[str]
    wrong_shapes: list[str]
    num_common: int

    def raise_or_warn(self, checkpoint: str | os.PathLike[str], *, strict: bool) -> None:
        """Raise if the checkpoint cannot be loaded, log a warning if it does not fit completely.

        Raises:
            CheckpointError: If a shape is wrong, no name is in both, or with ``strict`` if any name is not.
        """
        differences = self._differences()
        if self.wrong_shapes or (strict and differences) or (self.num_common == 0 and differences):
            raise CheckpointError("\n- ".join([f"`{checkpoint}` does not fit the model:", *differences]))
        if differences:
            loaded = (
                f"`{checkpoint}` was loaded, but not all of it fits the model; names that are not in the model were "
                "not used when loading:"
            )
            logger.warning("\n- ".join([loaded, *differences]))

    def _differences(self) -> list[str]:
        differences = list(self.wrong_shapes)
        if self.missing:
            differences.append(f"not in the checkpoint: {_listed(f'`{name}`' for name in self.missing)}")
        if self.unexpected:
            # Suggest only missing names: a name that is in the checkpoint needs no other value.
            hints = [f"`{name}`{did_you_mean(name, self.missing)}" for name in self.unexpected[:_NUM_LISTED]]
            differences.append(f"not in the model: {_listed([*hints, *self.unexpected[_NUM_LISTED:]])}")
        return differences


def match(
    model_shapes: Mapping[str, torch.Size | None],
    checkpoint_shapes: Mapping[str, torch.Size | None],
    *,
    ties: Iterable[Iterable[str]] = (),
) -> Match:
    """Compare the names and shapes of a checkpoint and a model.

    Args:
        model_shapes: Shapes by name; ``None`` for a value without a shape.
        checkpoint_shapes: The same for the checkpoint.
        ties: Groups of tied names in the model; one value per group is enough.
    """
    common = [name for name in checkpoint_shapes if name in model_shapes]
    filled = {*common, *(name for group in map(set, ties) if group & set(common) for name in group)}
    return Match(
        missing=[name for name in model_shapes if name not in filled],
        unexpected=[name for name in checkpoint_shapes if name not in model_shapes],
        wrong_shapes=[
            f"`{name}` has the shape {_shape(checkpoint_shapes[name])} in the checkpoint and "
            f"{_shape(model_shapes[name])} in the model"
            for name in common
            if model_shapes[name] is not None and model_shapes[name] != checkpoint_shapes[name]
        ],
        num_common=len(common),
    )


def _shape(shape: torch.Size | None) -> str:
    return "no tensor" if shape is None else str(tuple(shape))


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NUM_LISTED} more" if len(names) > _NUM_LISTED else ""
    return ", ".join(names[:_NUM_LISTED]) + more
