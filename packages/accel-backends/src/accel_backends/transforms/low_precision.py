"""The run's precision as a transform."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

from accel_backends.transforms.protocol import Stage

if TYPE_CHECKING:
    from accel_backends.precisions.protocol import Precision


class LowPrecisionTransform:
    """Makes a model compute in the run's precision."""

    stage: ClassVar[Stage] = Stage.LOW_PRECISION

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def apply(self, model: nn.Module, *, evaluation_mode: bool) -> nn.Module:
        """Return ``model``, converted; evaluation computes in the same precision as training."""
        return self.precision.convert(model)
