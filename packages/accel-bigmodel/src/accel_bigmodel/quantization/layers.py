"""Replace torch's linear layers by bitsandbytes layers."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from accel_bigmodel.quantization.configuration import BnbQuantizationConfig
from accel_bigmodel.ties import find_tied_parameters
from accel_state.availability import is_bnb_available
from accel_state.errors import ConfigError, NotAvailableError


def require_bitsandbytes() -> Any:
    """Return the module ``bitsandbytes``.

    Raises:
        NotAvailableError: If it is not installed.
    """
    if not is_bnb_available():
        raise NotAvailableError(
            "Quantization needs the package `bitsandbytes`, which is not installed. Run `pip install bitsandbytes`."
        )
    return importlib.import_module("bitsandbytes")  # by name: it has no types, and need not be here


def get_keys_to_not_convert(model: nn.Module) -> list[str]:
    """Return the names of modules to keep in full precision: those with tied weights, and the last one."""
    tied = {name for group in find_tied_parameters(model) for name in group}
    names = {name.rpartition(".")[0] for name in tied}
    children = [name for name, _ in model.named_children()]
    is_bare = hasattr(model, "base_model_prefix") and not hasattr(model, model.base_model_prefix)  # type: ignore[arg-type]
    if children and not (is_bare and not tied):
        names.add(children[-1])
    return sorted(names)


def has_4bit_bnb_layers(model: nn.Module) -> bool:
    """Whether any layer of ``model`` has 4-bit weights."""
    if not is_bnb_available():
        return False
    return any(isinstance(module, require_bitsandbytes().nn.Linear4bit) for module in model.modules())


def get_parameter_device(parameter: nn.Module) -> torch.device:
    """Return the device of the first parameter of a module.

    Raises:
        ConfigError: If it has none.
    """
    first = next(parameter.parameters(), None)
    if first is None:
        raise ConfigError(
            f"`{type(parameter).__name__}` has no parameters, and so no device. Pass a module with parameters."
        )
    return first.device


def replace_with_bnb_layers(
    model: nn.Module,
    bnb_quantization_config: BnbQuantizationConfig,
    modules_to_not_convert: list[str] | None = None,
    current_key_name: list[str] | None = None,
) -> nn.Module:
    """Replace the linear layers of ``model`` by empty bitsandbytes layers, and return it.

    Args:
        model: Changed in place.
        bnb_quantization_config: Which layers to replace.
        modules_to_not_convert: Names of modules that stay unchanged, with their submodules.
        current_key_name: The dotted name of ``model`` in a larger model, as a list of parts.
    """
    prefix = ".".join(current_key_name or [])
    for name in linear_names(model, modules_to_not_convert or [], prefix=prefix):
        layer: Any = model.get_submodule(name)
        swap(model, name, empty_layer(layer, bnb_quantization_config))
    return model


def linear_names(model: nn.Module, skipped: list[str], *, prefix: str = "") -> list[str]:
    """Return the names of the linear layers that are to be quantized."""
    return [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and not _is_skipped(f"{prefix}.{name}".strip("."), skipped)
    ]


def swap(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace the module called ``name`` by ``layer``."""
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    layer.train(owner.training)
    setattr(owner, last, layer)


def empty_layer(layer: nn.Linear, config: BnbQuantizationConfig) -> Any:
    """Return a quantized layer of the same shape, on the meta device."""
    bnb = require_bitsandbytes()
    sizes = (layer.in_features, layer.out_features, layer.bias is not None)
    if config.load_in_8bit:
        made = bnb.nn.Linear8bitLt(
            *sizes, has_fp16_weights=False, threshold=config.llm_int8_threshold, device="meta"
        )
    else:
        made = bnb.nn.Linear4bit(
            *sizes, compute_dtype=config.bnb_4bit_compute_dtype,
            compress_statistics=config.bnb_4bit_use_double_quant, quant_type=config.bnb_4bit_quant_type, device="meta",
        )  # fmt: skip
    made.requires_grad_(False)
    return made


def quantized_layer(layer: nn.Linear, config: BnbQuantizationConfig, device: torch.device) -> Any:
    """Return ``layer`` quantized, on ``device``."""
    bnb = require_bitsandbytes()
    made = empty_layer(layer, config)
    values = layer.weight.detach().contiguous()
    if config.load_in_8bit:
        weight = bnb.nn.Int8Params(values, requires_grad=False, has_fp16_weights=False)
    else:
        weight = bnb.nn.Params4bit(
            values, requires_grad=False, compress_statistics=config.bnb_4bit_use_double_quant,
            quant_type=config.bnb_4bit_quant_type, module=made,
        )  # fmt: skip
    made.weight = weight.to(device)
    if layer.bias is not None:
        made.bias = nn.Parameter(layer.bias.detach().to(device, copy=True), requires_grad=False)
    return made


def empty_8bit_layer(layer: nn.Linear, config: BnbQuantizationConfig, scales: torch.Tensor) -> Any:
    """Return a layer with the bias, and with 8-bit values on the meta device, still to be loaded.

    Args:
        layer: The layer to replace.
        config: The quantization settings.
        scales: Of shape ``(out_features,)``, on the CPU.
    """
    made = empty_layer(layer, config)
    empty = torch.empty(layer.weight.shape, dtype=torch.int8, device="meta")
    made.weight = require_bitsandbytes().nn.Int8Params(empty, requires_grad=False, SCB=scales)
    if layer.bias is not None:
        made.bias = layer.bias
    return made


def _is_skipped(name: str, skipped: list[str]) -> bool:
    return any(f".{module}." in f".{name}." for module in skipped)
