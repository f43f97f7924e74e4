"""Quantize models to 8-bit or 4-bit, from a checkpoint or from memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_bigmodel.dispatch import dispatch_model
from accel_bigmodel.loading.checkpoints import load_checkpoint_in_model
from accel_bigmodel.loading.loader import LoadOptions, load_weights
from accel_bigmodel.offload.store import offload_weight
from accel_bigmodel.planning.allocation import device_map_of_mode
from accel_bigmodel.planning.device_maps import DeviceMap, check_device_map, default_device, device_of
from accel_bigmodel.planning.max_memory import MaxMemory
from accel_bigmodel.quantization.configuration import BnbQuantizationConfig
from accel_bigmodel.quantization.layers import (
    empty_8bit_layer,
    get_keys_to_not_convert,
    linear_names,
    quantized_layer,
    require_bitsandbytes,
    swap,
)
from accel_bigmodel.tensors import set_module_tensor_to_device
from accel_checkpoint.formats.weight_files import checkpoint_files, read_weights
from accel_state.devices import current_device_backend
from accel_state.enums import CustomDtype
from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user


def load_and_quantize_model(
    model: nn.Module,
    bnb_quantization_config: BnbQuantizationConfig,
    weights_location: str | os.PathLike[str] | None = None,
    device_map: str | Mapping[str, int | str | torch.device] | None = None,
    no_split_module_classes: Sequence[str] | None = None,
    max_memory: MaxMemory | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    offload_state_dict: bool = False,
) -> nn.Module:
    """Quantize the linear layers of ``model``, layer by layer, and return it ready to run.

        config = BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        model = load_and_quantize_model(model, config, "weights", device_map="auto")

    A checkpoint is mapped, so that only one unquantized layer is in memory at a time. An 8-bit checkpoint is loaded
    without conversion.

    Args:
        model: A skeleton, or a loaded model. Changed in place.
        bnb_quantization_config: The quantization settings.
        weights_location: The checkpoint to load, as for `load_checkpoint_in_model`; a skeleton needs one.
        device_map: A map or a mode. Default: everything on the first accelerator, else the CPU. Parts on disk are
            quantized to 8-bit too; with 4-bit they stay in ``torch_dtype``.
        no_split_module_classes: Names of classes that stay on one device.
        max_memory: As for `get_max_memory`.
        offload_folder: For parts on disk.
        offload_state_dict: Has no effect, as for `load_checkpoint_in_model`.

    Raises:
        NotAvailableError: If bitsandbytes is not installed.
        ConfigError: If a skeleton is passed without weights, or an 8-bit checkpoint is to be loaded in 4-bit.
    """
    require_bitsandbytes()
    config = bnb_quantization_config
    skipped = get_keys_to_not_convert(model) if config.skip_modules is None else list(config.skip_modules)
    skipped += config.keep_in_fp32_modules or []
    placed = get_quantized_model_device_map(model, config, device_map, max_memory, no_split_module_classes)
    if not linear_names(model, skipped):
        warn_user(
            f"Nothing of the {type(model).__name__} is quantized: it has no `torch.nn.Linear` except skipped modules "
            f"({', '.join(skipped) or 'none'}). Use a model with `torch.nn.Linear` layers (GPT-2 has none), or change "
            "`skip_modules`.",
        )
    if weights_location is not None:
        _load(model, config, weights_location, skipped)
    elif any(parameter.is_meta for parameter in model.parameters()):
        raise ConfigError("`model` has no weights: pass `weights_location`, or load it first.")
    _quantize(model, config, skipped, placed)
    _cast_rest(model, config)
    return dispatch_model(model, placed, offload_dir=offload_folder)


def get_quantized_model_device_map(
    model: nn.Module,
    bnb_quantization_config: BnbQuantizationConfig,
    device_map: str | Mapping[str, int | str | torch.device] | None = None,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | None = None,
) -> DeviceMap:
    """Return a device map computed from the quantized sizes of a model's parts.

    Args:
        model: The model, not quantized yet.
        bnb_quantization_config: The quantization settings.
        device_map: As for `load_and_quantize_model`.
        max_memory: As for `get_max_memory`.
        no_split_module_classes: Names of classes that stay on one device.
    """
    if device_map is None:
        return {"": default_device()}
    if not isinstance(device_map, str):
        check_device_map(model, device_map)
        return device_map
    config = bnb_quantization_config
    skipped = get_keys_to_not_convert(model) if config.skip_modules is None else config.skip_modules
    special: dict[str, str | torch.dtype | CustomDtype] = {
        f"{name}.weight": config.target_dtype
        for name in linear_names(model, [*skipped, *(config.keep_in_fp32_modules or [])])
    }
    return device_map_of_mode(
        device_map,
        model,
        max_memory,
        no_split_module_classes,
        dtype=config.torch_dtype,
        special_dtypes=special,
    )


def quantize_and_offload_8bit(
    model: nn.Module,
    param: torch.Tensor,
    param_name: str,
    new_dtype: torch.dtype,
    offload_folder: str | os.PathLike[str],
    offload_index: MutableMapping[str, Any],
    fp16_statistics: torch.Tensor | None,
) -> None:
    """Write one 8-bit weight with its scales to an offload folder, and leave it on the meta device in the model.

    Args:
        model: The model with the parameter.
        param: Its values, of shape ``(out_features, in_features)`` on any device, 8-bit with ``fp16_statistics``.
        param_name: Its dotted name.
        new_dtype: The dtype of the meta parameter.
        offload_folder: An existing folder.
        offload_index: The index; entries are added to it.
        fp16_statistics: The scales of 8-bit values.
    """
    bnb = require_bitsandbytes()
    values, scales = param, fp16_statistics
    if scales is None:
        quantized = bnb.nn.Int8Params(param.detach().cpu(), requires_grad=False, has_fp16_weights=False).to(
            "cpu"
        )
        values, scales = quantized.data, quantized.SCB
    offload_weight(values, param_name, offload_folder, offload_index)
    assert scales is not None
    offload_weight(scales, param_name.replace("weight", "SCB"), offload_folder, offload_index)
    set_module_tensor_to_device(
        model, param_name, "meta", dtype=new_dtype, value=torch.empty(param.shape, device="meta")
    )


def _load(
    model: nn.Module, config: BnbQuantizationConfig, checkpoint: str | os.PathLike[str], skipped: list[str]
) -> None:
    scales = _scales_in(checkpoint)
    if not scales:
        load_checkpoint_in_model(model, checkpoint, mmap=True)
        return
    if config.load_in_4bit:
        raise ConfigError(
            f"`{checkpoint}` was saved in 8-bit and cannot be loaded in 4-bit. Use the original weights."
        )
    for name in linear_names(model, skipped):
        if name in scales:
            layer: Any = model.get_submodule(name)
            swap(model, name, empty_8bit_layer(layer, config, scales[name]))
    load_weights(
        model, checkpoint, LoadOptions(may_map=True), strict=False, ignored=(".SCB", ".weight_format")
    )


def _scales_in(checkpoint: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    scales: dict[str, torch.Tensor] = {}
    for file in checkpoint_files(checkpoint):
        for name, value in read_weights(file.path).items():
            if name.endswith(".SCB"):
                scales[name.removesuffix(".SCB")] = value.clone()
    return scales


def _quantize(
    model: nn.Module, config: BnbQuantizationConfig, skipped: list[str], device_map: DeviceMap
) -> None:
    for name in linear_names(model, skipped):
        where = device_of(name, device_map)
        if config.load_in_4bit and where == "disk":
            continue
        device = torch.device("cpu") if where in (None, "disk") else torch.device(where)
        layer: Any = model.get_submodule(name)
        swap(model, name, quantized_layer(layer, config, device))


def _cast_rest(model: nn.Module, config: BnbQuantizationConfig) -> None:
    dtype = config.torch_dtype
    if dtype is None and current_device_backend().name != "cpu":
        dtype = torch.float16
    assert dtype is None or isinstance(dtype, torch.dtype)
    kept = config.keep_in_fp32_modules or []
    for name, parameter in model.named_parameters():
        is_kept = any(f".{module}." in f".{name}" for module in kept)
        wanted = torch.float32 if is_kept else dtype
        if wanted is not None and parameter.is_floating_point() and parameter.dtype != wanted:
            parameter.data = parameter.data.to(wanted)
