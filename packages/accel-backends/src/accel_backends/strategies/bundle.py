"""What is prepared together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accel_state.errors import ConfigError


@dataclass(slots=True)
class Bundle:
    """Objects that one call of ``prepare`` got, by kind; a strategy returns them in the same order.

    Engines that need a model together with its optimizer (DeepSpeed) or that replace an optimizer's
    parameters (FSDP2) see all of them here at once.
    """

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which objects of a `Bundle` are moved to the device: one bool per object, in the bundle's order.

    A sequence that is left empty leaves the choice to the run's ``device_placement``.
    """

    models: Sequence[bool] = ()
    optimizers: Sequence[bool] = ()
    loaders: Sequence[bool] = ()


class InTurn:
    """Stands for several prepared objects: one for each place at which the same object was passed, in their order."""

    def __init__(self, *objects: Any) -> None:
        self._left, self._number = list(objects), len(objects)

    def take(self) -> Any:
        """Return the next of the objects.

        Raises:
            ConfigError: If there is none left.
        """
        if not self._left:
            raise ConfigError(
                f"One object was passed to `prepare` {self._number + 1} times, but it stands for {self._number}. Pass "
                "it less often."
            )
        return self._left.pop(0)
