"""What the user asked for when the Accelerator was built, under the names that libraries look for."""

from __future__ import annotations

from typing import TypeVar

import torch

from accel.configuration import RunConfiguration
from accel_backends import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    Precision,
    ProfileKwargs,
)
from accel_data import DataLoaderConfiguration
from accel_state.enums import RNGType
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import InitProcessGroupKwargs, KwargsHandler

Handler = TypeVar("Handler", bound=KwargsHandler)


class Settings:
    """The run's settings, one by one. Those that can still take effect can be set."""

    configuration: RunConfiguration
    _precision: Precision
    _handlers: dict[type[KwargsHandler], KwargsHandler]

    @property
    def dataloader_config(self) -> DataLoaderConfiguration:
        """How loaders are split over the processes."""
        return self.configuration.loader

    @property
    def step_scheduler_with_optimizer(self) -> bool:
        """Whether schedulers are stepped as often as optimizers."""
        return self.configuration.step_scheduler_with_optimizer

    @property
    def rng_types(self) -> list[RNGType]:
        """Generators that every rank sets alike at the start of an epoch."""
        return list(self.configuration.rng_types)

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """What scales losses in fp16; None in other precisions."""
        return self._precision.scaler

    @property
    def native_amp(self) -> bool:
        """Whether the forward of prepared models is cast by `torch.autocast`."""
        return self._precision.dtype is not None

    @native_amp.setter
    def native_amp(self, value: bool) -> None:
        if value != self.native_amp:
            raise ConfigError(
                f"`native_amp` follows `mixed_precision`, which is {self._precision.name}, and cannot be {value}. "
                f"Build the Accelerator with `mixed_precision={'bf16' if value else 'no'}`."
            )

    @property
    def autocast_handler(self) -> AutocastKwargs | None:
        """How operations are cast, where that was given."""
        return self._handler(AutocastKwargs)

    @property
    def scaler_handler(self) -> GradScalerKwargs | None:
        """How losses are scaled in fp16, where that was given."""
        return self._handler(GradScalerKwargs)

    @property
    def init_handler(self) -> InitProcessGroupKwargs | None:
        """How the process group is set up, where that was given."""
        return self._handler(InitProcessGroupKwargs)

    @property
    def profile_handler(self) -> ProfileKwargs | None:
        """What `profile` records, where that was given."""
        return self._handler(ProfileKwargs)

    @property
    def ddp_handler(self) -> DistributedDataParallelKwargs | None:
        """How models are wrapped for data parallelism, where that was given; for those prepared from now on."""
        return self._handler(DistributedDataParallelKwargs)

    @ddp_handler.setter
    def ddp_handler(self, handler: DistributedDataParallelKwargs | None) -> None:
        if handler is None:
            self._handlers.pop(DistributedDataParallelKwargs, None)
        else:
            self._handlers[DistributedDataParallelKwargs] = handler

    def _handler(self, kind: type[Handler]) -> Handler | None:
        found = self._handlers.get(kind)
        return found if isinstance(found, kind) else None
