"""The objects of one call of `prepare`, by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from accel_state.errors import ConfigError


@dataclass(slots=True)
class Bundle:
    """The objects of one call of ``prepare``, by kind; a strategy returns them in the same order.

    Together, since DeepSpeed needs a model with its optimizer, and FSDP2 replaces parameters of optimizers.
    """

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Placement:
    """Whether to move the models and optimizers of a `Bundle` to the device: one bool for each, in the bundle's order.

    An empty sequence stands for the run's ``device_placement``.
    """

    models: Sequence[bool] = ()
    optimizers: Sequence[bool] = ()


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


KINDS: list[tuple[type, str]] = [
    (nn.Module, "models"),
    (torch.optim.Optimizer, "optimizers"),
    (LRScheduler, "schedulers"),
    (DataLoader, "loaders"),
]
"""Classes and their list in a `Bundle`; objects of other classes need no preparation."""


def register_kind(kind: type, name: str) -> None:
    """Put objects of class ``kind`` into the `Bundle` list ``name`` from now on.

    For a strategy's own stand-ins for optimizers and schedulers, such as `DummyOptim`.
    """
    if (kind, name) not in KINDS:
        KINDS.append((kind, name))
