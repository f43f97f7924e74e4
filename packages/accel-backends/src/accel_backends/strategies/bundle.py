"""What is prepared together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


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
