"""Full precision: nothing is cast and nothing is scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accel_backends.handlers.autocast import AutocastKwargs
from accel_backends.precisions.loss_scaler import unscale_once
from accel_state.enums import FP8BackendType
from accel_state.kwargs_handler import KwargsHandler

if TYPE_CHECKING:
    from accel_backends.precisions.protocol import GatheredWeights
    from accel_state.devices import DeviceBackend


class FullPrecision:
    """The precision `no`: the model computes in the types its parameters have."""

    name: ClassVar[str] = "no"
    reads_handlers: ClassVar[tuple[type[KwargsHandler], ...]] = ()
    dtype: torch.dtype | None = None
    has_own_layers: ClassVar[bool] = False
    fp8_backend: ClassVar[FP8BackendType] = FP8BackendType.NO
    scaler: torch.amp.GradScaler | None = None

    def __init__(
        self, *, device_backend: DeviceBackend, handlers: Mapping[type[KwargsHandler], KwargsHandler]
    ) -> None:
        del device_backend, handlers

    @property
    def gathering(self) -> GatheredWeights | None:
        """None: weights are gathered like all parameters."""
        return None

    def convert_layers(self, model: torch.nn.Module) -> None:
        """Do nothing: layers stay the user's own."""

    def check_converted(self, model: torch.nn.Module) -> None:
        """Do nothing: layers stay the user's own."""

    def convert(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return ``model`` as it is."""
        return model

    def autocast(self, handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Return a context that does nothing: there is no type to cast to."""
        return nullcontext()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return ``loss``, times the scale where there is a scaler."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide this optimizer's gradients by the scale of a scaler, once per step however often it is called.

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
