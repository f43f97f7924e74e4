"""The precisions `bf16` and `fp16`, which cast by `torch.autocast`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accel_backends.autocast_forward import wrap_forward
from accel_backends.handlers.precision import AutocastKwargs, GradScalerKwargs
from accel_backends.precisions.loss_scaler import LossScaler
from accel_backends.precisions.precision import Precision, select_precision
from accel_backends.unwrap import innermost
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import KwargsHandler

if TYPE_CHECKING:
    from accel_backends.handlers.collection import Handlers
    from accel_state.devices import DeviceBackend


class AutocastPrecision(Precision):
    """Casts operations inside forward to one type and outputs back to fp32; parameters stay as they are.

    Raises:
        ConfigError: If the device does not compute in the type, or torch has no autocast for it.
    """

    name: ClassVar[str]
    compute_dtype: ClassVar[torch.dtype]
    reads_handlers: ClassVar[tuple[type[KwargsHandler], ...]] = (AutocastKwargs,)

    def __init__(self, *, device_backend: DeviceBackend, handlers: Handlers) -> None:
        self.device_type: str = device_backend.name
        reason = device_backend.why_not_dtype(self.compute_dtype)
        if reason is None and not torch.amp.is_autocast_available(self.device_type):
            reason = f"This torch ({torch.__version__}) has no autocast for it."
        if reason is not None:
            raise ConfigError(
                f"`mixed_precision={self.name}` is not supported on this `{self.device_type}` device. {reason} "
                "Use another precision (`no` is always there), or another device."
            )
        self.dtype = self.compute_dtype
        self._handlers = handlers

    @property
    def handler(self) -> AutocastKwargs:
        """The autocast settings at present; a script may replace them."""
        return self._handlers.get(AutocastKwargs) or AutocastKwargs()

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


class BF16Precision(AutocastPrecision):
    """The precision `bf16`: the range of fp32 with fewer digits, so gradients need no scaling."""

    name: ClassVar[str] = "bf16"
    compute_dtype: ClassVar[torch.dtype] = torch.bfloat16


class FP16Precision(AutocastPrecision):
    """The precision `fp16`: a small range, so the loss is scaled and steps that overflow are skipped."""

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


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> AbstractContextManager[Any]:
    """Return a context in which operations are cast as the current `AcceleratorState` says.

    Args:
        native_amp: Whether operations are cast at all.
        autocast_kwargs: How they are cast.
    """
    if not native_amp:
        return nullcontext()
    from accel_state import AcceleratorState
    from accel_state.runtime import current_runtime

    precision = select_precision(
        AcceleratorState().mixed_precision, device_backend=current_runtime().device_backend
    )
    return precision.autocast(autocast_kwargs)
