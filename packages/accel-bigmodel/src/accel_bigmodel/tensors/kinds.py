"""Classes of parameters that are more than their numbers, such as quantised weights, and how they are made again.

A class is known by its full name, so that its package need not be installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class TensorKind:
    """How parameters of one class are taken apart and made again; this one serves plain parameters and most others."""

    has_shape_of_values = True
    """Whether the parameter has the shape of the weight that it stands for."""

    def attributes(self, parameter: torch.Tensor, owner: nn.Module | None) -> dict[str, Any]:
        """Return the attributes that a new parameter needs, without a second copy of the values.

        Args:
            parameter: Of this kind.
            owner: The module that it belongs to, if that is known.
        """
        return dict(vars(parameter))

    def make(
        self, kind: Any, values: torch.Tensor, *, requires_grad: bool, attributes: dict[str, Any]
    ) -> nn.Parameter:
        """Return a parameter of the class ``kind`` with these values."""
        if isinstance(values, kind) and values.requires_grad == requires_grad:
            made = values
        elif issubclass(kind, nn.Parameter):
            made = kind(values, requires_grad=requires_grad)
        else:
            made = nn.Parameter(values, requires_grad=requires_grad)
        for key, attribute in attributes.items():
            made.__dict__.setdefault(key, attribute)
        assert isinstance(made, nn.Parameter)
        return made

    def after_forward(self, owner: nn.Module) -> None:
        """Drop what the forward of ``owner`` kept of the values."""


class Int8Kind(TensorKind):
    """``Int8Params`` of bitsandbytes: int8 values, which stand in ``CB`` too, and the scales of their rows, ``SCB``."""

    def attributes(self, parameter: torch.Tensor, owner: nn.Module | None) -> dict[str, Any]:
        carried = {
            "has_fp16_weights": vars(parameter)["has_fp16_weights"],
            "SCB": vars(parameter)["SCB"],
            "CB": None,
        }
        state: Any = getattr(owner, "state", None)
        if carried["SCB"] is None and state is not None:
            carried["SCB"] = state.SCB  # the first forward moves the scales there
        return carried

    def make(
        self, kind: Any, values: torch.Tensor, *, requires_grad: bool, attributes: dict[str, Any]
    ) -> nn.Parameter:
        plain, scales = values.as_subclass(torch.Tensor), attributes["SCB"]
        made: nn.Parameter = kind(
            plain, requires_grad=requires_grad, has_fp16_weights=attributes["has_fp16_weights"],
            CB=plain if plain.dtype == torch.int8 else None, SCB=None if scales is None else scales.to(plain.device),
        )  # fmt: skip
        return made

    def after_forward(self, owner: nn.Module) -> None:
        state: Any = getattr(owner, "state", None)
        if state is not None:
            state.CB = state.SCB = None


class Params4bitKind(TensorKind):
    """``Params4bit`` of bitsandbytes: two values in a byte, and a ``quant_state`` to read them."""

    has_shape_of_values = False

    def make(
        self, kind: Any, values: torch.Tensor, *, requires_grad: bool, attributes: dict[str, Any]
    ) -> nn.Parameter:
        plain = values.as_subclass(torch.Tensor)
        made: nn.Parameter = kind(plain, requires_grad=requires_grad, **attributes).to(plain.device)
        return made


_PLAIN = TensorKind()
_KINDS: dict[str, TensorKind] = {
    "bitsandbytes.nn.modules.Int8Params": Int8Kind(),
    "bitsandbytes.nn.modules.Params4bit": Params4bitKind(),
}
"""By the full name of the class that they handle, which includes derived ones."""


def kind_of(tensor_class: type) -> TensorKind:
    """Return what handles a class of tensors."""
    for base in tensor_class.__mro__:
        found = _KINDS.get(f"{base.__module__}.{base.__qualname__}")
        if found is not None:
            return found
    return _PLAIN


def resident_class(tensor: torch.Tensor) -> type:
    """Return the class of a tensor, for a placeholder that of the tensor it stands for."""
    found: type = tensor.__dict__.get("resident_class", type(tensor))
    return found


def attributes_of(tensor: torch.Tensor, owner: nn.Module | None = None) -> dict[str, Any]:
    """Return the attributes of a parameter or buffer, or of what a placeholder stands for, without its values."""
    if not tensor.__dict__:
        return {}
    attributes = kind_of(resident_class(tensor)).attributes(tensor, owner)
    for own in ("_weight", "_itself", "resident_class"):
        attributes.pop(own, None)
    return attributes


def as_parameter_like(old: torch.Tensor, values: torch.Tensor) -> nn.Parameter:
    """Return ``values`` as a parameter of the class of ``old``, with its attributes and ``requires_grad``."""
    requires_grad = old.requires_grad and (values.is_floating_point() or values.is_complex())
    wanted, attributes = resident_class(old), attributes_of(old)
    if wanted is nn.Parameter and not attributes and type(values) is torch.Tensor:
        # Nearly always, and many thousand times: what `nn.Parameter(values, requires_grad)` comes to.
        plain: nn.Parameter = torch.Tensor._make_subclass(nn.Parameter, values, requires_grad)
        return plain
    return kind_of(wanted).make(wanted, values, requires_grad=requires_grad, attributes=attributes)
