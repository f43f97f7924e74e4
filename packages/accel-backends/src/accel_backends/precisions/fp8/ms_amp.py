"""8 bits by MS-AMP, which is no longer developed: its one function is called, and no more is built on it."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from accel_backends.containers import innermost
from accel_backends.handlers.fp8 import MSAMPRecipeKwargs
from accel_backends.precisions.fp8.base import FP8Precision
from accel_state.enums import FP8BackendType
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.logging import get_logger
from accel_state.runtime import current_runtime

if TYPE_CHECKING:
    from accel_state.devices import DeviceBackend
    from accel_state.kwargs_handler import KwargsHandler

logger = get_logger(__name__)

_DEVICES = frozenset({"cuda"})
_OTHERS = "Use torchao (`fp8_backend=AO`), Transformer Engine (`TE`), or `mixed_precision=bf16`."


class MSAMPPrecision(FP8Precision):
    """The precision `fp8` by MS-AMP, for one process on one NVIDIA GPU.

    Raises:
        ConfigError: On another device, or with several processes, whose gradients it wants to reduce by itself.
        NotAvailableError: If the library cannot be imported.
    """

    fp8_backend: ClassVar[FP8BackendType] = FP8BackendType.MSAMP
    library: ClassVar[str] = "MS-AMP"

    def __init__(
        self,
        *,
        device_backend: DeviceBackend,
        handlers: Mapping[type[KwargsHandler], KwargsHandler],
        recipe: MSAMPRecipeKwargs,
    ) -> None:
        super().__init__(device_backend=device_backend, handlers=handlers)
        num_processes = current_runtime().topology.world_size
        if device_backend.name not in _DEVICES:
            raise ConfigError(
                f"MS-AMP computes on NVIDIA GPUs, not on this `{device_backend.name}` device. {_OTHERS}"
            )
        if num_processes > 1:
            raise ConfigError(
                f"MS-AMP reduces gradients of several processes by itself, which is not built in, and there are "
                f"{num_processes}. {_OTHERS}"
            )
        try:
            self._msamp: Any = importlib.import_module("msamp")
        except (ImportError, OSError) as error:
            raise NotAvailableError(
                f"MS-AMP is installed, but cannot be imported: {error}. {_OTHERS}"
            ) from error
        self._level = recipe.opt_level
        self._paired: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        logger.warning_once("MS-AMP is no longer developed. %s", _OTHERS)

    def pair(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model and its optimizer in 8 bits; the optimizer is a new one. Both are on the GPU."""
        paired, stepping = self._msamp.initialize(model, optimizer, opt_level=self._level)
        self._paired.add(paired)
        return paired, stepping

    def is_converted(self, model: nn.Module) -> bool:
        """Whether ``model`` was paired with its optimizer."""
        return model in self._paired

    def convert_layers(self, model: nn.Module) -> None:
        """Do nothing for a model that has been paired with its optimizer.

        Raises:
            ConfigError: If it has not been.
        """
        if not self.is_converted(innermost(model)):
            raise ConfigError(
                "MS-AMP converts a model together with its optimizer. Prepare one model and one optimizer in the same "
                "call, with one process and without FSDP or DeepSpeed."
            )
