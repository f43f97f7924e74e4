"""Which parameter replaced which, so that optimizers created before a model was sharded can follow."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from accel_backends.fsdp.state import like_parameter
from accel_state.errors import ConfigError


class ReplacedParameters:
    """The replaced parameters, as long as other objects keep them alive.

    Args:
        record_new: A method that records the latest ones, called before they are listed.
    """

    def __init__(self, record_new: Callable[[], None] | None = None) -> None:
        self._record_new = None if record_new is None else weakref.WeakMethod(record_new)
        self._pairs: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor]]] = {}

    def record(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Record which tensor was replaced by which: old, new. Those that stayed are passed over."""
        for old, new in pairs:
            if old is not new:
                # The entry goes with the old parameter: its number may then be that of another object.
                self._pairs[id(old)] = weakref.ref(old, partial(self._pairs.pop, id(old))), weakref.ref(new)

    def newest(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the current replacement of ``parameter``: itself if it was not replaced."""
        while (pair := self._pairs.get(id(parameter))) is not None:
            successor = pair[1]()
            if successor is None:
                raise ConfigError(
                    f"The model that the parameter of shape {tuple(parameter.shape)} belonged to is gone. "
                    "Keep the model that `prepare` returned."
                )
            parameter = successor
        return parameter

    def __contains__(self, parameter: object) -> bool:
        """Whether ``parameter`` was replaced."""
        return id(parameter) in self._pairs

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield the parameters that were replaced and are still alive."""
        if self._record_new is not None and (record := self._record_new()) is not None:
            record()
        for old, _ in list(self._pairs.values()):
            parameter = old()
            if parameter is not None:
                yield parameter

    def repoint(self, optimizer: torch.optim.Optimizer) -> None:
        """Rebind an optimizer to the parameters that replaced its own, keeping groups and state.

        State that has the shape of its parameter is sharded like it. No communication.
        """
        for group in optimizer.param_groups:
            for index, old in enumerate(group["params"]):
                new = self.newest(old)
                if new is old:
                    continue
                # In place, since some optimizers keep the list beside their groups.
                group["params"][index] = new
                if old in optimizer.state:
                    values = optimizer.state.pop(old)
                    optimizer.state[new] = {
                        name: like_parameter(value, new) for name, value in values.items()
                    }
