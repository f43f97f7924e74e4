"""The hook that brings weights of another module."""

from __future__ import annotations

from typing import Any

from torch import nn

from accel_bigmodel.hooks.protocol import ModelHook
from accel_bigmodel.offload.residency import Residency


class BringWeightsHook(ModelHook):
    """Brings offloaded weights for the forward of a module that reads them directly, though they are not its own.

    Args:
        residency: The weights; the hook of the module that owns them takes care of them otherwise.
    """

    def __init__(self, residency: Residency) -> None:
        self._residency = residency

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._residency.bring()
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self._residency.put_back()
        return output

    def after_error(self, module: nn.Module) -> None:
        self._residency.put_back()
