"""`KwargsHandler`, the base of settings objects, and the settings of the process group."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from accel_state.environment.patching import clear_environment
from accel_state.errors import ConfigError


@dataclass
class KwargsHandler:
    """A set of keyword arguments for one object that accel builds."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields with copies of their values."""
        return copy.deepcopy({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    def to_kwargs(self) -> dict[str, Any]:
        """Return the fields whose values differ from a handler that is built without arguments or settings."""
        with clear_environment():
            default = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != default[name]}


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """How the process group is set up: see `torch.distributed.init_process_group`.

    Args:
        backend: The group's backend; ``nccl``, the default, means the device's: on CUDA devices
            ``cpu:gloo,cuda:nccl``. ``cuda:nccl`` is NCCL without gloo for tensors on the CPU.
        init_method: The rendezvous of the ranks (``env://``, ``tcp://host:port``, ``file:///path``).
        timeout: How long a collective may take; None leaves it to the backend (10 minutes for NCCL, 30 for
            others).

    Raises:
        ConfigError: If ``timeout`` is not a positive `datetime.timedelta`.
    """

    backend: str | None = "nccl"
    init_method: str | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not isinstance(self.timeout, timedelta):
            raise ConfigError(
                f"`timeout` must be a `datetime.timedelta`, got {self.timeout!r}. Write "
                "`timedelta(seconds=...)`."
            )
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise ConfigError(f"`timeout` must be longer than nothing, got {self.timeout}.")
