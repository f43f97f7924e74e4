"""What the precisions that cast by `torch.autocast` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accel_backends.containers import innermost
from accel_backends.handlers.autocast import AutocastKwargs
from accel_backends.precisions.forward import wrap_forward
from accel_backends.precisions.loss_scaler import unscale_once
from accel_state.enums import FP8BackendType
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import KwargsHandler

if TYPE_CHECKING:
    from accel_backends.precisions.protocol import GatheredWeights
    from accel_state.devices import DeviceBackend


class AutocastPrecision:
    """Casts operations inside forward to one type and outputs back to fp32; parameters stay as they are.

    Raises:
        ConfigError: If the device does not compute in the type, or torch has no autocast for it.
    """

    name: ClassVar[str]
    compute_dtype: ClassVar[torch.dtype]
    reads_handlers: ClassVar[tuple[type[KwargsHandler], ...]] = (AutocastKwargs,)
    has_own_layers: ClassVar[bool] = False
    fp8_backend: ClassVar[FP8BackendType] = FP8BackendType.NO
    scaler: torch.amp.GradScaler | None = None

    def __init__(
        self, *, device_backend: DeviceBackend, handlers: Mapping[type[KwargsHandler], KwargsHandler]
    ) -> None:
        self.device_type: str = device_backend.name
        reason = device_backend.why_not_dtype(self.compute_dtype)
        if reason is None and not torch.amp.is_autocast_available(self.device_type):
            reason = f"This torch ({torch.__version__}) has no autocast for it."
        if reason is not None:
            raise ConfigError(
                f"`mixed_precision={self.name}` is not supported on this `{self.device_type}` device. {reason} "
                "Use another precision (`no` is always there), or another device."
            )
        self._handlers = handlers

    @property
    def handler(self) -> AutocastKwargs:
        """The user's choice at present."""
        handler = self._handlers.get(AutocastKwargs)
        return handler if isinstance(handler, AutocastKwargs) else AutocastKwargs()

    @property
    def dtype(self) -> torch.dtype:
        """The type that operations are cast to."""
        return self.compute_dtype

    @property
    def gathering(self) -> GatheredWeights | None:
        """None: weights are gathered like all parameters."""
        return None

    def convert_layers(self, model: torch.nn.Module) -> None:
        """Do nothing: layers stay the user's own."""

    def check_converted(self, model: torch.nn.Module) -> None:
        """Do nothing: layers stay the user's own."""

    def convert(self, model: torch.nn.Module) -> torch.nn.Module:
        """Exchange layers, bind autocast around the forward of the model inside all wrappers, and return ``model``."""
        self.convert_layers(model)
        wrap_forward(
            innermost(model),
            device_type=self.device_type,
            dtype=self.compute_dtype,
            enabled=self.handler.enabled,
            cache_enabled=self.handler.cache_enabled,
        )
        return model

    def autocast(self, handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Return a context in which operations are cast, as ``handler`` says or else the run's own."""
        choice = handler or self.handler
        return torch.autocast(
            self.device_type,
            dtype=self.compute_dtype,
            enabled=choice.enabled,
            cache_enabled=choice.cache_enabled,
        )

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return ``loss``, times the scale where there is a scaler."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide this optimizer's gradients by the scale, once per step however often it is called.

        Call it when all gradients of the step are there: what is accumulated later would be too large.
        """
        if self.scaler is not None:
            unscale_once(self.scaler, getattr(optimizer, "optimizer", optimizer))

    def share_overflows(self) -> None:
        """Do nothing: no step is skipped."""

    def leave_scaling_to_engine(self) -> None:
        """Do nothing: no loss is scaled."""

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        """Step ``optimizer``; it always really steps."""
        optimizer.step(closure)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scaler; an empty dict without one."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the scaler."""
        if self.scaler is not None:
            self.scaler.load_state_dict(dict(state))
