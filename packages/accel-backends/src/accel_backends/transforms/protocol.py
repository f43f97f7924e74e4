"""A change to a model, and the order in which changes are made."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import ClassVar, Protocol

from torch import nn


class Stage(enum.IntEnum):
    """When a transform takes its turn; smaller is earlier, and data parallelism comes after all of them."""

    TENSOR_PARALLEL = 10
    LOW_PRECISION = 20
    CONTEXT_PARALLEL = 30
    ACTIVATION_CHECKPOINTING = 40
    COMPILE = 50


class ModelTransform(Protocol):
    """Turns a model into one that computes the same in another way."""

    stage: ClassVar[Stage]

    def apply(self, model: nn.Module, *, evaluation_mode: bool) -> nn.Module:
        """Return the transformed model: the same object where that is possible."""
        ...


def apply_transforms(
    model: nn.Module, transforms: Iterable[ModelTransform], *, evaluation_mode: bool = False
) -> nn.Module:
    """Apply ``transforms`` in the order of their stages; within a stage in the order given."""
    for transform in sorted(transforms, key=lambda transform: transform.stage):
        model = transform.apply(model, evaluation_mode=evaluation_mode)
    return model
