"""Half precision to float32: nested values, and the outputs of a forward."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

import torch

from accel_ops.nested.structures import recursively_apply

T = TypeVar("T")

_HALF = (torch.float16, torch.bfloat16)


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _HALF


def convert_to_fp32(tensor: T) -> T:
    """Return nested data with every float16 and bfloat16 tensor in float32 (differentiable)."""
    converted: T = recursively_apply(torch.Tensor.float, tensor, test_type=_is_half)
    return converted


class ConvertOutputsToFp32:
    """A callable that runs ``model_forward`` and returns its outputs in float32.

    It has the name, doc and attributes of the wrapped callable (``__wrapped__`` is that callable), and pickles
    if that pickles.
    """

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        functools.update_wrapper(self, model_forward)
        self.model_forward = model_forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return convert_to_fp32(self.model_forward(*args, **kwargs))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind like a function, so that a decorated method receives its ``self``."""
        if instance is None:
            return self
        return MethodType(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by name if a module or a class has this object under that name, as a decorated function does."""
        name = getattr(self, "__qualname__", "")
        value: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is self:
            return name
        return super().__reduce_ex__(protocol)


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> ConvertOutputsToFp32:
    """Wrap a forward so that its half-precision outputs are float32. See :class:`ConvertOutputsToFp32`."""
    return ConvertOutputsToFp32(model_forward)
