"""8 bits by torchao: on GPUs of compute capability 8.9 and newer, on CPUs, and emulated anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from accel_backends.handlers.fp8 import AORecipeKwargs
from accel_backends.precisions.fp8.base import FP8Precision
from accel_backends.precisions.fp8.torchao_layers import convert_model_to_fp8_ao, has_ao_layers
from accel_backends.unwrap import innermost
from accel_state.enums import FP8BackendType
from accel_state.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from torchao.float8 import Float8LinearConfig

    from accel_backends.handlers.collection import Handlers
    from accel_backends.precisions.precision import GatheredWeights
    from accel_state.devices import DeviceBackend


class TorchAOPrecision(FP8Precision):
    """The precision `fp8` by torchao's `Float8Linear`.

    Raises:
        ConfigError: If the device has no 8-bit products and they are not to be emulated, or the recipe contradicts
            itself.
    """

    fp8_backend: ClassVar[FP8BackendType] = FP8BackendType.AO
    library: ClassVar[str] = "torchao"

    def __init__(
        self,
        *,
        device_backend: DeviceBackend,
        handlers: Handlers,
        recipe: AORecipeKwargs,
    ) -> None:
        super().__init__(device_backend=device_backend, handlers=handlers)
        self.config = linear_config(recipe)
        reason = device_backend.why_not_dtype(torch.float8_e4m3fn)
        if reason is not None and not self.config.emulate:
            raise ConfigError(
                f"`mixed_precision=fp8` needs 8-bit products, which this `{device_backend.name}` device does not have. "
                f"{reason} Use `mixed_precision=bf16`, or try it out with "
                "`AORecipeKwargs(config=Float8LinearConfig(emulate=True))`, which is slower than bf16."
            )
        self._filter = recipe.module_filter_func
        self.gathering = _gathering(recipe, self.config)

    def is_converted(self, model: nn.Module) -> bool:
        """Whether layers of ``model`` are torchao's."""
        return has_ao_layers(model)

    def convert_layers(self, model: nn.Module) -> None:
        """Exchange linear layers of ``model``, in place, and log which."""
        model = innermost(model)
        if not self.is_converted(model):
            self.report(convert_model_to_fp8_ao(model, self.config, self._filter))


def linear_config(recipe: AORecipeKwargs) -> Float8LinearConfig:
    """Return torchao's config for a recipe; weights are never wrapped when layers are made."""
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.config import Float8LinearRecipeName

    config: Any = recipe.config
    pads = recipe.pad_inner_dim
    if config is None or isinstance(config, str):
        names = [name.value for name in Float8LinearRecipeName]
        if config is not None and config not in names:
            raise UnknownNameError.of("recipe of torchao", config, names)
        config = Float8LinearConfig.from_recipe_name(config or Float8LinearRecipeName.TENSORWISE)
        pads = True if pads is None else pads
    return replace(
        config,
        pad_inner_dim=config.pad_inner_dim if pads is None else pads,
        enable_fsdp_float8_all_gather=False,
    )


def _gathering(recipe: AORecipeKwargs, config: Float8LinearConfig) -> GatheredWeights | None:
    """Return what gathers weights in 8 bits, None where they are gathered in bf16.

    Raises:
        ConfigError: If that is asked for with several scales for a weight.
    """
    from torchao.float8.config import ScalingGranularity

    has_one_scale = config.cast_config_weight.scaling_granularity is ScalingGranularity.TENSORWISE
    asked = recipe.enable_fsdp_float8_all_gather
    if asked is None:
        given: Any = recipe.config
        is_own = given is not None and not isinstance(given, str)
        asked = given.enable_fsdp_float8_all_gather if is_own else has_one_scale
    if not asked:
        return None
    if not has_one_scale:
        raise ConfigError(
            "`enable_fsdp_float8_all_gather` needs weights with one scale each, which the recipe of torchao does not "
            'have. Use `config="tensorwise"`, or leave it out.'
        )
    from accel_backends.precisions.fp8.torchao_gathering import Float8Gathering  # brings DTensor

    return Float8Gathering()
