"""The hook that loads weights of another module."""

from __future__ import annotations

from typing import Any

from torch import nn

from accel_bigmodel.hooks.protocol import ModelHook
from accel_bigmodel.offload.residency import Residency


class OnloadWeightsHook(ModelHook):
    """Loads offloaded weights of another module, for a module whose forward pass reads them directly.

    Args:
        residency: The weights, which the hook of the other module manages otherwise.
    """

    def __init__(self, residency: Residency) -> None:
        self._residency = residency

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._residency.onload()
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self._residency.offload()
        return output

    def after_error(self, module: nn.Module) -> None:
        self._residency.offload()
