"""What every precision does, whatever number format stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from accel_backends.handlers.autocast import AutocastKwargs
from accel_state.enums import FP8BackendType
from accel_state.kwargs_handler import KwargsHandler

if TYPE_CHECKING:
    from accel_ops.named_tensors import NamedTensor
    from accel_state.devices import DeviceBackend


class GatheredWeights(Protocol):
    """How weights are gathered in a format of their own where parameters are sharded one by one."""

    def wrap(self, owned: Sequence[NamedTensor], *, num_shards: int) -> None:
        """Make the parameters among ``owned`` that are gathered so ready to be sharded; they have their values."""

    def stored(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a sharded parameter as optimizers and checkpoints know it, in the same memory."""

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Follow the steps of ``optimizer``. All ranks step together."""


class Precision(Protocol):
    """How a model computes and how its optimizer steps under one number format.

    A member is constructed once per run as ``member(device_backend=…, handlers=…)`` by `select_precision`,
    which is the moment to refuse a device that cannot do it.
    """

    name: ClassVar[str]
    reads_handlers: ClassVar[tuple[type[KwargsHandler], ...]]

    fp8_backend: ClassVar[FP8BackendType]
    """Which library computes in 8 bits; `NO` where none does."""
    has_own_layers: ClassVar[bool]
    """Whether layers of a model are exchanged, which a strategy must be able to work with."""

    @property
    def dtype(self) -> torch.dtype | None:
        """The type that operations are cast to, or None where nothing is cast."""

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The gradient scaler, where the format needs one."""

    @property
    def gathering(self) -> GatheredWeights | None:
        """How weights are gathered in this format where they are sharded, None where they need nothing special."""

    def convert_layers(self, model: torch.nn.Module) -> None:
        """Exchange layers of ``model``, in place; done already or nothing to exchange, it stays as it is.

        For strategies that cast parameters and inputs by themselves; others call `convert`.
        """

    def check_converted(self, model: torch.nn.Module) -> None:
        """Refuse a model that somebody has sharded, and whose layers are not those of this format."""

    def convert(self, model: torch.nn.Module) -> torch.nn.Module:
        """Make ``model`` compute in this format and return it; converting twice changes nothing more."""

    def autocast(self, handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Return a context in which operations are cast, with ``handler`` instead of the run's own choice."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return what backward should be called on."""

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring this optimizer's gradients back to their true size, once per step."""

    def share_overflows(self) -> None:
        """Let all ranks skip a step together; for strategies under which each rank has a part of the gradients."""

    def leave_scaling_to_engine(self) -> None:
        """Scale no losses from now on; for strategies whose engine does."""

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> bool:
        """Step ``optimizer`` and return whether the parameters were really updated."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold to go on where this run stands."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


class PrecisionFactory(Protocol):
    """What the registry `accel.precisions` holds: usually the class itself."""

    def __call__(
        self, *, device_backend: DeviceBackend, handlers: Mapping[type[KwargsHandler], KwargsHandler]
    ) -> Precision: ...
