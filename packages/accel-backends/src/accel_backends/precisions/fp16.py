"""float16 autocast: a small range, so the loss is scaled and overflowing steps are skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accel_backends.handlers.autocast import AutocastKwargs
from accel_backends.handlers.grad_scaler import GradScalerKwargs
from accel_backends.precisions.autocast import AutocastPrecision
from accel_backends.precisions.loss_scaler import LossScaler, step_scaled, unscale_once
from accel_state.kwargs_handler import KwargsHandler

if TYPE_CHECKING:
    from accel_state.devices import DeviceBackend


class FP16Precision(AutocastPrecision):
    """The precision `fp16`, on any device that torch has autocast for, the CPU included."""

    name: ClassVar[str] = "fp16"
    compute_dtype: ClassVar[torch.dtype] = torch.float16
    reads_handlers: ClassVar[tuple[type[KwargsHandler], ...]] = (AutocastKwargs, GradScalerKwargs)

    def __init__(
        self, *, device_backend: DeviceBackend, handlers: Mapping[type[KwargsHandler], KwargsHandler]
    ) -> None:
        super().__init__(device_backend=device_backend, handlers=handlers)
        handler = handlers.get(GradScalerKwargs)
        self.scaler: LossScaler = LossScaler(self.device_type, **(handler.to_kwargs() if handler else {}))

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return ``loss`` times the current scale."""
        scaled: torch.Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide this optimizer's gradients by the scale, once per step however often it is called.

        Call it when all gradients of the step are there: what is accumulated later would be too large.
        """
        unscale_once(self.scaler, getattr(optimizer, "optimizer", optimizer))

    def share_overflows(self) -> None:
        """Let all ranks skip a step where the gradients of one overflow."""
        self.scaler.share_overflows()

    def leave_scaling_to_engine(self) -> None:
        """Scale no losses from now on: the engine does."""
        self.scaler = LossScaler(self.device_type, enabled=False)

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        """Step ``optimizer`` unless its gradients overflowed; return whether it stepped."""
        return step_scaled(self.scaler, optimizer, closure)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scaler."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the state of the scaler."""
        self.scaler.load_state_dict(dict(state))
