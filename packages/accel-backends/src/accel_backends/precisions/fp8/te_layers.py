"""Exchange linear layers and layer norms of a model for those of Transformer Engine, and back."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from accel_backends.precisions.fp8.conversion import Conversion, choose_layers, odd_shape, replace_layer
from accel_backends.precisions.fp8.te_package import transformer_engine

MULTIPLE = 16


def convert_model(
    model: nn.Module,
    to_transformer_engine: bool = True,
    _convert_linear: bool = True,
    _convert_ln: bool = True,
) -> Conversion:
    """Let linear layers and layer norms of ``model`` be those of Transformer Engine, in place, or plain ones again.

    Every layer is looked at. Their parameters stay the same objects, so that optimizers keep them.

    Args:
        model: The model, on any device.
        to_transformer_engine: Exchange plain layers for those of the library; else the other way.
        _convert_linear: Exchange linear layers, of sizes that are multiples of 16.
        _convert_ln: Exchange layer norms over the last dimension that have a weight and a bias.

    Returns:
        Which linear layers are those of the library after it, and why others are not.

    Raises:
        NotAvailableError: If Transformer Engine is not installed or cannot be imported.
    """
    if to_transformer_engine:
        return to_library(model, multiple=MULTIPLE, linear=_convert_linear, norms=_convert_ln)
    te = transformer_engine()
    for name, layer in list(model.named_modules()):
        if _convert_linear and type(layer) is te.Linear:
            replace_layer(model, name, _plain_linear(layer))
        elif _convert_ln and type(layer) is te.LayerNorm:
            replace_layer(model, name, _plain_norm(layer))
    return choose_layers(model, lambda name, layer: "plain again")


def to_library(
    model: nn.Module, *, multiple: int = MULTIPLE, linear: bool = True, norms: bool = True
) -> Conversion:
    """Exchange plain layers for those of the library, in place, as `convert_model` does.

    Args:
        model: The model.
        multiple: What the sizes of linear layers must be multiples of.
        linear: Exchange linear layers.
        norms: Exchange layer norms.
    """
    te = transformer_engine()

    def why_not(name: str, layer: nn.Linear) -> str | None:
        return odd_shape(layer, multiple) if linear else "linear layers are left out"

    found = choose_layers(model, why_not)
    for name in found.converted:
        layer = model.get_submodule(name)
        replace_layer(model, name, _with_parameters_of(layer, _linear(te, layer)))
    if norms:
        for name, layer in list(model.named_modules()):
            if name and _is_convertible_norm(layer):
                replace_layer(model, name, _with_parameters_of(layer, _norm(te, layer)))
    _leave_out_scales(model)
    return found


def has_transformer_engine_layers(model: nn.Module) -> bool:
    """Whether ``model`` has linear layers, layer norms or whole blocks of Transformer Engine."""
    # Whoever made such a layer has imported it.
    te: Any = sys.modules.get("transformer_engine.pytorch")
    if te is None:
        return False
    kinds = (te.Linear, te.LayerNorm, te.LayerNormLinear, te.LayerNormMLP, te.TransformerLayer)
    return any(isinstance(module, kinds) for module in model.modules())


def _is_convertible_norm(layer: nn.Module) -> bool:
    if type(layer) is not nn.LayerNorm or len(layer.normalized_shape) != 1:
        return False
    return {name for name, value in layer._parameters.items() if value is not None} == {"weight", "bias"}


def _linear(te: Any, layer: Any) -> Any:
    return te.Linear(
        layer.in_features,
        layer.out_features,
        bias=layer.bias is not None,
        params_dtype=layer.weight.dtype,
        device="meta",
    )


def _norm(te: Any, layer: Any) -> Any:
    return te.LayerNorm(layer.normalized_shape[0], eps=layer.eps, dtype=layer.weight.dtype, device="meta")


def _plain_linear(layer: Any) -> nn.Module:
    has_bias = layer._parameters.get("bias") is not None
    new = nn.Linear(layer.in_features, layer.out_features, bias=has_bias, device="meta")
    return _with_parameters_of(layer, new)


def _plain_norm(layer: Any) -> nn.Module:
    new = nn.LayerNorm(tuple(layer.weight.shape), eps=layer.eps, device="meta")
    return _with_parameters_of(layer, new)


def _with_parameters_of(old: nn.Module, new: nn.Module) -> nn.Module:
    for key, parameter in old._parameters.items():
        if parameter is not None:
            new._parameters[key] = parameter
    return new


def _leave_out_scales(model: nn.Module) -> None:
    """Let a state dict of ``model`` be that of the plain model.

    The library adds the history of its scales to it, as a pickle. It grows anew within its length.
    """
    if model.__dict__.get("_accel_leaves_out_scales"):
        return
    model.__dict__["_accel_leaves_out_scales"] = True
    model.register_state_dict_post_hook(_drop_scales)  # type: ignore[no-untyped-call]
    model.register_load_state_dict_post_hook(_miss_no_scales)  # type: ignore[no-untyped-call]


def _drop_scales(model: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in _names_of_scales(model, prefix):
        state.pop(name, None)


def _miss_no_scales(model: nn.Module, incompatible: Any) -> None:
    names = set(_names_of_scales(model, ""))
    incompatible.missing_keys[:] = [key for key in incompatible.missing_keys if key not in names]


def _names_of_scales(model: nn.Module, prefix: str) -> list[str]:
    te = transformer_engine()
    return [
        f"{prefix}{name}._extra_state"
        for name, module in model.named_modules()
        if isinstance(module, (te.Linear, te.LayerNorm))
    ]
