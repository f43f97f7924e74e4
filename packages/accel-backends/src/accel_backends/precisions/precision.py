"""The base class of all precisions, and their selection by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import torch

from accel_backends.handlers.collection import Handlers
from accel_backends.handlers.fp8 import RECIPE_KINDS
from accel_backends.handlers.precision import AutocastKwargs, GradScalerKwargs
from accel_backends.precisions.loss_scaler import LossScaler, unscale_once
from accel_backends.unwrap import inner_optimizer
from accel_ops.named_tensors import NamedTensor
from accel_state.devices import DeviceBackend
from accel_state.enums import FP8BackendType
from accel_state.kwargs_handler import KwargsHandler
from accel_state.registry import Registry
from accel_state.user_warnings import warn_user


class GatheredWeights(Protocol):
    """How weights are all-gathered in a dtype of their own if parameters are sharded one by one."""

    def wrap(self, owned: Sequence[NamedTensor], *, num_shards: int) -> None:
        """Prepare those parameters among ``owned`` for sharding that are gathered in that dtype; they have values."""

    def stored(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a sharded parameter as optimizers and checkpoints know it, in the same memory."""

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Follow the steps of ``optimizer``. All ranks step together."""


class Precision:
    """How a model computes and how its optimizer steps. This class is the precision `no`; others override it.

    `select_precision` constructs one per run. A precision that the device does not support raises an error then.

    Args:
        device_backend: The device that models compute on.
        handlers: The handlers of the run by class. They may be replaced later.
    """

    name: ClassVar[str] = "no"
    reads_handlers: ClassVar[tuple[type[KwargsHandler], ...]] = ()
    """The classes of handlers that have an effect; others are a warning."""
    fp8_backend: ClassVar[FP8BackendType] = FP8BackendType.NO
    """The library for 8-bit arithmetic."""
    has_own_layers: ClassVar[bool] = False
    """Whether `convert_layers` replaces layers, which not every strategy supports."""
    dtype: torch.dtype | None = None
    """The dtype of autocast, None without autocast."""
    scaler: LossScaler | None = None
    """The gradient scaler, None if losses are not scaled."""
    gathering: GatheredWeights | None = None
    """How sharded weights are all-gathered; None: as they are."""

    def __init__(self, *, device_backend: DeviceBackend, handlers: Handlers) -> None:
        del device_backend, handlers

    def convert_layers(self, model: torch.nn.Module) -> None:
        """Replace layers of ``model`` in place; a second call changes nothing.

        For strategies that cast parameters and inputs by themselves; others call `convert`.
        """

    def check_converted(self, model: torch.nn.Module) -> None:
        """Raise `ConfigError` for a model that is sharded already and whose layers would have to be replaced."""

    def convert(self, model: torch.nn.Module) -> torch.nn.Module:
        """Make ``model`` compute in this precision and return it; a second call changes nothing."""
        return model

    def autocast(self, handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Return a context in which operations are cast, by ``handler`` or by default the run's handler."""
        return nullcontext()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the tensor to call backward on: ``loss``, times the scale of the scaler."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide this optimizer's gradients by the scale of the scaler, once per step however often it is called.

        Call it when the gradients are complete: those accumulated later would be too large.
        """
        if self.scaler is not None:
            unscale_once(self.scaler, inner_optimizer(optimizer))

    def leave_scaling_to_engine(self) -> None:
        """Stop scaling losses; for strategies whose engine scales them."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scaler; an empty dict without one."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the scaler."""
        if self.scaler is not None:
            self.scaler.load_state_dict(dict(state))


PRECISIONS: Registry[Callable[..., Precision]] = Registry("precision", "accel.precisions")
_READ_BY_SOME = (AutocastKwargs, GradScalerKwargs, *RECIPE_KINDS)


def select_precision(
    name: str,
    *,
    device_backend: DeviceBackend,
    handlers: Handlers | None = None,
) -> Precision:
    """Return the precision called ``name``, set up for one device.

    Args:
        name: A member of the registry `accel.precisions`, such as ``bf16``.
        device_backend: The device that models compute on.
        handlers: The run's handlers by class, of which those for autocast, scaling and 8-bit arithmetic are read.

    Raises:
        ConfigError: If the name is unknown, or the device does not support the precision.
        NotAvailableError: If it needs a library that is not installed.
    """
    given = Handlers() if handlers is None else handlers  # an empty one may be filled later
    precision = PRECISIONS.get(str(name))(device_backend=device_backend, handlers=given)
    for kind in _READ_BY_SOME:
        if kind in given and kind not in precision.reads_handlers:
            warn_user(
                f"`{kind.__name__}` has no effect with `mixed_precision={precision.name}`. Leave it out."
            )
    return precision
