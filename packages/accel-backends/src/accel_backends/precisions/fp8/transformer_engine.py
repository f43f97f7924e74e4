"""8 bits by NVIDIA's Transformer Engine, on its GPUs from compute capability 8.9 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

from accel_backends.handlers.fp8 import TERecipeKwargs
from accel_backends.precisions.fp8.base import FP8Precision
from accel_backends.precisions.fp8.te_forward import apply_fp8_autowrap
from accel_backends.precisions.fp8.te_layers import has_transformer_engine_layers, to_library
from accel_backends.precisions.fp8.te_package import transformer_engine
from accel_backends.precisions.fp8.te_recipes import check_gpu, make_recipe
from accel_backends.unwrap import innermost
from accel_state.enums import FP8BackendType
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel_backends.handlers.collection import Handlers
    from accel_state.devices import DeviceBackend

_DEVICES = frozenset({"cuda"})
_MULTIPLES = {"delayed": 16, "current": 16, "block": 16, "mxfp8": 32}
"""What sizes must be multiples of, by what has a scale of its own."""


class TransformerEnginePrecision(FP8Precision):
    """The precision `fp8` by the layers of Transformer Engine; a model that has such layers keeps those that it has.

    Raises:
        ConfigError: If this is no GPU of NVIDIA's, or none that computes the recipe, or the recipe contradicts itself.
        NotAvailableError: If the library cannot be imported.
    """

    fp8_backend: ClassVar[FP8BackendType] = FP8BackendType.TE
    library: ClassVar[str] = "Transformer Engine"

    def __init__(
        self,
        *,
        device_backend: DeviceBackend,
        handlers: Handlers,
        recipe: TERecipeKwargs,
    ) -> None:
        super().__init__(device_backend=device_backend, handlers=handlers)
        if device_backend.name not in _DEVICES:
            raise ConfigError(
                f"Transformer Engine computes on NVIDIA GPUs, not on this `{device_backend.name}` device. Use torchao "
                "(`fp8_backend=AO`), or `mixed_precision=bf16`."
            )
        transformer_engine()
        check_gpu(recipe)
        make_recipe(recipe)  # refuses what cannot be
        self._recipe = recipe

    def is_converted(self, model: nn.Module) -> bool:
        """Whether ``model`` has layers of Transformer Engine."""
        return has_transformer_engine_layers(model)

    def convert_layers(self, model: nn.Module) -> None:
        """Exchange layers of ``model``, in place, log which, and let its forward compute in 8 bits."""
        model = innermost(model)
        if not self.is_converted(model):
            multiple = _MULTIPLES[str(self._recipe.scaling)]
            found = to_library(model, multiple=multiple)
            found.check(way_out=f"Use `mixed_precision=bf16`, or sizes that are multiples of {multiple}.")
            self.report(found)
        apply_fp8_autowrap(model, self._recipe)
