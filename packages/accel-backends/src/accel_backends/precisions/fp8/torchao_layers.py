"""Exchange the linear layers of a model for those of torchao, which compute in 8 bits and keep weights as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accel_backends.precisions.fp8.conversion import Conversion, choose_layers, odd_shape
from accel_state.availability import torchao_required

if TYPE_CHECKING:
    from torchao.float8 import Float8LinearConfig

LayerFilter = Callable[[nn.Module, str], bool]
"""Called with a layer and its name; whether it is to compute in 8 bits."""

_MULTIPLE = 16
_WAY_OUT = "Say which may be with `AORecipeKwargs(module_filter_func=...)`, or use `mixed_precision=bf16`."


@torchao_required
def convert_model_to_fp8_ao(
    model: nn.Module,
    config: Float8LinearConfig | None = None,
    module_filter_func: LayerFilter | None = None,
) -> Conversion:
    """Let the linear layers of ``model`` compute in 8 bits, in place; their parameters stay the same objects.

    Args:
        model: The model, on any device.
        config: How torchao computes; by default with one scale for each tensor.
        module_filter_func: Which layers. By default all but the first and the last, as
            `filter_first_and_last_linear_layers` has it. Sizes that are no multiples of 16 stay as they are, unless
            products are emulated.

    Returns:
        What was converted, and why other layers were not.

    Raises:
        ConfigError: If nothing can be converted.
        NotAvailableError: If torchao is not installed.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = config or Float8LinearConfig()
    is_chosen = _by_default(model) if _is_default(module_filter_func) else _by_user(module_filter_func)

    def why_not(name: str, layer: nn.Linear) -> str | None:
        return is_chosen(name, layer) or (None if config.emulate else odd_shape(layer, _MULTIPLE))

    found = choose_layers(model, why_not)
    found.check(way_out=_WAY_OUT)
    chosen = frozenset(found.converted)
    convert_to_float8_training(model, module_filter_fn=lambda layer, name: name in chosen, config=config)
    for name in found.converted:
        model.get_submodule(name).register_forward_pre_hook(_cast_input)
    return found


def has_ao_layers(model: nn.Module) -> bool:
    """Whether layers of ``model`` compute in 8 bits by torchao."""
    import sys

    # Whoever converted a model has imported it.
    linear = sys.modules.get("torchao.float8.float8_linear")
    return linear is not None and any(isinstance(module, linear.Float8Linear) for module in model.modules())


def find_first_last_linear_layers(model: nn.Module) -> tuple[str | None, str | None]:
    """Return the names of the first and the last linear layer of ``model``, in the order of its modules."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return (names[0], names[-1]) if names else (None, None)


def filter_linear_layers(module: nn.Module, fqn: str, layers_to_filter: Sequence[str | None]) -> bool:
    """Whether a module can compute in 8 bits: a linear layer of sizes that are multiples of 16.

    Args:
        module: The module.
        fqn: Its name.
        layers_to_filter: Names of modules that shall not.
    """
    return (
        isinstance(module, nn.Linear) and fqn not in layers_to_filter and odd_shape(module, _MULTIPLE) is None
    )


def filter_first_and_last_linear_layers(module: nn.Module, fqn: str) -> bool:
    """Whether a layer can compute in 8 bits and is neither the first nor the last linear layer of its model.

    The first and the last are more sensitive to rounding than the others.

    Args:
        module: The model that has the layer; or the layer itself, of which only the sizes are known then. As a
            ``module_filter_func`` it knows the model.
        fqn: Name of the layer in its model.
    """
    if isinstance(module, nn.Linear):
        return filter_linear_layers(module, fqn, [])
    return filter_linear_layers(module.get_submodule(fqn), fqn, find_first_last_linear_layers(module))


def _is_default(chosen: LayerFilter | None) -> bool:
    return chosen is None or chosen is filter_first_and_last_linear_layers


def _by_default(model: nn.Module) -> Callable[[str, nn.Module], str | None]:
    first, last = find_first_last_linear_layers(model)
    reasons = {last: "the last linear layer", first: "the first linear layer"}
    return lambda name, layer: reasons.get(name)


def _by_user(chosen: LayerFilter | None) -> Callable[[str, nn.Module], str | None]:
    assert chosen is not None
    return lambda name, layer: None if chosen(layer, name) else "`module_filter_func` says no"


def _cast_input(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Cast the input as autocast does for a linear layer; torchao 0.18 looks at the autocast of CUDA alone."""
    rows = args[0] if args else None
    if rows is None or not torch.is_autocast_enabled(rows.device.type):
        return None
    return (rows.to(torch.get_autocast_dtype(rows.device.type)), *args[1:])
