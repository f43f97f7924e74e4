"""float16 autocast: a small range, so the loss is scaled and overflowing steps are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accel_backends.handlers.autocast import AutocastKwargs
from accel_backends.handlers.grad_scaler import GradScalerKwargs
from accel_backends.precisions.autocast import AutocastPrecision
from accel_backends.precisions.loss_scaler import LossScaler, step_scaled
from accel_state.kwargs_handler import KwargsHandler

if TYPE_CHECKING:
    from accel_backends.handlers.collection import Handlers
    from accel_state.devices import DeviceBackend


class FP16Precision(AutocastPrecision):
    """The precision `fp16`, on any device that torch has autocast for, the CPU included."""

    name: ClassVar[str] = "fp16"
    compute_dtype: ClassVar[torch.dtype] = torch.float16
    reads_handlers: ClassVar[tuple[type[KwargsHandler], ...]] = (AutocastKwargs, GradScalerKwargs)

    def __init__(self, *, device_backend: DeviceBackend, handlers: Handlers) -> None:
        super().__init__(device_backend=device_backend, handlers=handlers)
        handler = handlers.get(GradScalerKwargs)
        self.scaler: LossScaler = LossScaler(self.device_type, **(handler.to_kwargs() if handler else {}))

    def leave_scaling_to_engine(self) -> None:
        """Scale no losses from now on: the engine does."""
        self.scaler = LossScaler(self.device_type, enabled=False)

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        """Step ``optimizer`` unless its gradients overflowed; return whether it stepped."""
        return not step_scaled(self.scaler, optimizer, closure)
