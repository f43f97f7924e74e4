"""Which parameter replaced which, so that optimizers created before a model was sharded can follow."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accel_backends.sharding.parts import shard_like
from accel_state.errors import ConfigError


class ReplacedParameters:
    """The replaced parameters, as long as other objects keep them alive."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor]]] = {}

    def record(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Record that ``new`` replaced ``old``, unless they are the same."""
        if old is new:
            return
        key = id(old)
        # The entry goes with the old parameter: its number may then be that of another object.
        self._pairs[key] = weakref.ref(old, lambda _: self._pairs.pop(key, None)), weakref.ref(new)

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


@torch.no_grad()
def like_parameter(value: Any, parameter: torch.Tensor) -> Any:
    """Shard optimizer state like its parameter if it has its shape; pass other values through. No communication.

    Args:
        value: A state in full, the same on every rank.
        parameter: The parameter, which may be a `DTensor`.

    Raises:
        ConfigError: If the state is on the meta device, where it has no values.
    """
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor) or value.shape != parameter.shape:
        return value
    if value.dim() == 0:
        return value
    if value.is_meta and not parameter.is_meta:
        raise ConfigError(
            f"The optimizer has a state of shape {tuple(value.shape)} on the meta device: it was made from a model "
            "without values. Make it from the model that `prepare` returned."
        )
    moved = value.to(parameter.device)
    if moved.is_floating_point():
        # Up only: master weights are stored in fp32, and fp32 state of half-precision parameters stays fp32.
        moved = moved.to(torch.promote_types(moved.dtype, parameter.dtype))
    return shard_like(parameter, moved)
