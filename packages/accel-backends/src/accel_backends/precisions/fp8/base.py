"""What the precisions of 8 bits share, whichever library computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

from accel_backends.handlers.fp8 import RECIPE_KINDS
from accel_backends.handlers.precision import AutocastKwargs
from accel_backends.precisions.autocast import BF16Precision
from accel_backends.unwrap import innermost
from accel_state.errors import ConfigError
from accel_state.logging import get_logger

if TYPE_CHECKING:
    from accel_backends.handlers.collection import Handlers
    from accel_backends.precisions.fp8.conversion import Conversion
    from accel_state.devices import DeviceBackend
    from accel_state.kwargs_handler import KwargsHandler

logger = get_logger(__name__)

_LITTLE = 0.5


class FP8Precision(BF16Precision):
    """The precision `fp8`: layers of a library compute in 8 bits, and all else in bf16 by autocast."""

    name: ClassVar[str] = "fp8"
    library: ClassVar[str]
    reads_handlers: ClassVar[tuple[type[KwargsHandler], ...]] = (AutocastKwargs, *RECIPE_KINDS)
    has_own_layers: ClassVar[bool] = True

    def __init__(self, *, device_backend: DeviceBackend, handlers: Handlers) -> None:
        super().__init__(device_backend=device_backend, handlers=handlers)
        if not self.handler.enabled:
            raise ConfigError(
                "`AutocastKwargs(enabled=False)` leaves nothing in bf16, which `mixed_precision=fp8` computes in "
                "beside 8 bits. Leave it out."
            )

    def is_converted(self, model: nn.Module) -> bool:
        """Whether ``model`` has layers of the library."""
        raise NotImplementedError

    def check_converted(self, model: nn.Module) -> None:
        """Refuse a model that somebody has sharded without layers of the library.

        Raises:
            ConfigError: If it has none.
        """
        if not self.is_converted(innermost(model)):
            raise ConfigError(
                f"The {type(model).__name__} is sharded already and has no layers of {self.library}, which could not "
                "take the place of its own any more. Let `prepare` shard it, or convert its layers first."
            )

    def report(self, conversion: Conversion) -> None:
        """Log what was converted; as a warning where it is too little to gain much."""
        log = logger.warning if conversion.share < _LITTLE else logger.info
        log("fp8 (%s): %s", self.library, conversion)
