"""Compare the names and shapes of a checkpoint with those of a model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from accel_state.errors import CheckpointError, did_you_mean

_NUM_LISTED = 5


@dataclass(frozen=True, slots=True)
class Match:
    """A checkpoint held against a model.

    Args:
        missing: Names that the model has and the checkpoint has not.
        unexpected: Names that the checkpoint has and the model has not.
        misshapen: What is wrong with the shapes, one line each.
        num_common: How many names both have.
    """

    missing: list[str]
    unexpected: list[str]
    misshapen: list[str]
    num_common: int

    def settle(self, checkpoint: str | os.PathLike[str], *, strict: bool) -> None:
        """Raise for what cannot be loaded, warn of what is left out.

        Raises:
            CheckpointError: If a shape is wrong, no name is common, or with ``strict`` if any name is not.
        """
        differences = self._differences()
        if self.misshapen or (strict and differences) or (self.num_common == 0 and differences):
            raise CheckpointError("\n- ".join([f"`{checkpoint}` does not fit the model:", *differences]))
        if differences:
            warnings.warn(
                "\n- ".join([f"`{checkpoint}` was loaded, but not all of it fits the model:", *differences]),
                stacklevel=3,
            )

    def _differences(self) -> list[str]:
        differences = list(self.misshapen)
        if self.missing:
            differences.append(f"not in the checkpoint: {_listed(f'`{name}`' for name in self.missing)}")
        if self.unexpected:
            # The nearest name is looked for among those that lack a value: the others are taken.
            hints = [f"`{name}`{did_you_mean(name, self.missing)}" for name in self.unexpected[:_NUM_LISTED]]
            differences.append(f"not in the model: {_listed([*hints, *self.unexpected[_NUM_LISTED:]])}")
        return differences


def match(
    model_shapes: Mapping[str, torch.Size | None],
    checkpoint_shapes: Mapping[str, torch.Size | None],
    *,
    ties: Iterable[Iterable[str]] = (),
) -> Match:
    """Hold the names and shapes of a checkpoint against those of a model.

    Args:
        model_shapes: By name; ``None`` stands for a value that has no shape.
        checkpoint_shapes: The same of the checkpoint.
        ties: Groups of names in the model of which one value is enough.
    """
    if model_shapes == checkpoint_shapes:
        return Match([], [], [], num_common=len(model_shapes))
    common = [name for name in checkpoint_shapes if name in model_shapes]
    filled = {*common, *(name for group in map(set, ties) if group & set(common) for name in group)}
    return Match(
        missing=[name for name in model_shapes if name not in filled],
        unexpected=[name for name in checkpoint_shapes if name not in model_shapes],
        misshapen=[
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
