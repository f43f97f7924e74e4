"""megatron-core's gradient reduction, optimizer and schedule, from those of the script and the plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from accel_backends.plugins.megatron import MegatronLMPlugin
from accel_backends.strategies.megatron.packages import core
from accel_backends.strategies.megatron.wrappers import MegatronLMDummyScheduler
from accel_state.errors import ConfigError


def further_names() -> frozenset[str]:
    """Return the names of `other_megatron_args` that the optimizer and the reduction of gradients take."""
    return frozenset(_names(_optimizer_kind()) | _names(_reduction_kind()))


def with_reduction(parts: list[nn.Module], config: Any, plugin: MegatronLMPlugin) -> list[nn.Module]:
    """Return the parts of a model, wrapped to compute in 16 bits where their config says it, and to reduce gradients.

    All ranks together: every data rank begins with the values of the first.
    """
    if plugin.custom_prepare_model_function is not None:
        return list(plugin.custom_prepare_model_function(parts))
    given = _chosen(_reduction_kind(), plugin.other_megatron_args)
    settings = {
        "grad_reduce_in_fp32": config.params_dtype is torch.bfloat16,
        "use_distributed_optimizer": bool(plugin.use_distributed_optimizer),
        **given,
    }
    reduction = _reduction_kind()(**settings)
    kind = core("distributed").DistributedDataParallel
    wrapped = [
        kind(config, reduction, part, disable_bucketing=place > 0)
        for place, part in enumerate(in_format(parts, config))
    ]
    for part in wrapped:
        part.broadcast_params()
    if reduction.overlap_grad_reduce:
        config.no_sync_func = _each([part.no_sync for part in wrapped])
        config.grad_sync_func = (
            _each([part.start_grad_sync for part in wrapped]) if len(wrapped) > 1 else None
        )
    return wrapped


def in_format(parts: list[nn.Module], config: Any) -> list[nn.Module]:
    """Return the parts of a model, wrapped to compute in 16 bits where their config says it."""
    if not (config.bf16 or config.fp16):
        return parts
    wrap = core("transformer.module").Float16Module
    return [wrap(config, part) for part in parts]


def make_optimizer(
    like: Mapping[str, Any], parts: list[nn.Module], config: Any, plugin: MegatronLMPlugin
) -> Any:
    """Return a `megatron.core.optimizer.MegatronOptimizer` that steps the parts of a model.

    Args:
        like: What `optimizer_settings` returned.
        parts: They, from `with_reduction`.
        config: Of the model; it learns how losses are scaled and gradients completed.
        plugin: The settings.
    """
    settings = {
        **like,
        "min_lr": plugin.min_lr,
        "bf16": config.bf16,
        "fp16": config.fp16,
        "params_dtype": config.params_dtype,
        "clip_grad": plugin.gradient_clipping,
        "use_distributed_optimizer": bool(plugin.use_distributed_optimizer),
        "use_precision_aware_optimizer": bool(plugin.use_precision_aware_optimizer),
        "optimizer_cpu_offload": bool(plugin.optimizer_cpu_offload),
        "optimizer_offload_fraction": float(bool(plugin.optimizer_cpu_offload)),
        "overlap_cpu_optimizer_d2h_h2d": bool(plugin.overlap_cpu_optimizer_d2h_h2d),
        **_chosen(_optimizer_kind(), plugin.other_megatron_args),
    }
    own = _optimizer_kind()(**settings)
    optimizer = core("optimizer").get_megatron_optimizer(own, parts, _overrides(own, plugin))
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = core("distributed").finalize_model_grads
    return optimizer


def make_scheduler(
    dummy: MegatronLMDummyScheduler, optimizer: Any, plugin: MegatronLMPlugin, settings: Mapping[str, Any]
) -> Any:
    """Return megatron-core's schedule of the learning rate and the weight decay, counted in steps.

    Args:
        dummy: How long it is, where the plugin does not say it.
        optimizer: The optimizer of megatron-core.
        plugin: The settings.
        settings: What `optimizer_settings` returned.

    Raises:
        ConfigError: If nobody says how long it is, or the parts of it contradict each other.
    """
    rows = plugin.global_batch_size or 1
    in_steps = {
        name: None if (value := getattr(plugin, f"lr_{name}_samples")) is None else -(-value // rows)
        for name in ("decay", "warmup")
    }
    length = plugin.lr_decay_iters or in_steps["decay"] or dummy.total_num_steps or plugin.train_iters
    if length is None:
        raise ConfigError(
            "Nobody says how long the schedule is. Give the `MegatronLMDummyScheduler` a `total_num_steps`, or set "
            "`lr_decay_iters` of the MegatronLMPlugin."
        )
    warmup = plugin.lr_warmup_iters or in_steps["warmup"]
    if plugin.lr_warmup_fraction is not None:
        warmup = int(plugin.lr_warmup_fraction * length)
    warmup = dummy.warmup_num_steps if warmup is None else warmup
    if warmup >= length:
        raise ConfigError(
            f"The learning rate grows over {warmup} steps, which must be fewer than the {length} of the schedule."
        )
    decay = settings["weight_decay"]
    return core("optimizer_param_scheduler").OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=settings["lr"],
        min_lr=plugin.min_lr,
        lr_warmup_steps=warmup,
        lr_decay_steps=length,
        lr_decay_style=plugin.lr_decay_style,
        start_wd=decay if plugin.start_weight_decay is None else plugin.start_weight_decay,
        end_wd=decay if plugin.end_weight_decay is None else plugin.end_weight_decay,
        wd_incr_steps=length,
        wd_incr_style=plugin.weight_decay_incr_style,
        **dummy.kwargs,
    )


def _overrides(config: Any, plugin: MegatronLMPlugin) -> dict[Any, Any]:
    """Return which parameters do not decay, or have another learning rate, by the conditions of the plugin."""
    configs = core("optimizer.optimizer_config")

    def key(name: str, condition: Callable[..., bool]) -> Any:
        predicate = configs.ParamWithNamePredicate(name=name, fn=lambda one, called: condition(called, one))
        return configs.ParamKey(with_name_predicate=predicate)

    overrides: dict[Any, Any] = core("optimizer").get_standard_config_overrides(config)
    if plugin.no_wd_decay_cond is not None:
        overrides = {key("no_wd_decay_cond", plugin.no_wd_decay_cond): {"wd_mult": 0.0}}
    if plugin.scale_lr_cond is not None:
        rates = {"max_lr": config.lr * plugin.lr_mult, "min_lr": plugin.min_lr * plugin.lr_mult}
        overrides[key("scale_lr_cond", plugin.scale_lr_cond)] = rates
    return overrides


def _each(functions: list[Any]) -> Any:
    return functions[0] if len(functions) == 1 else functions


def _optimizer_kind() -> Any:
    return core("optimizer").OptimizerConfig


def _reduction_kind() -> Any:
    return core("distributed").DistributedDataParallelConfig


def _names(kind: Any) -> set[str]:
    return {field.name for field in fields(kind) if field.init}


def _chosen(kind: Any, given: Mapping[str, Any] | None) -> dict[str, Any]:
    names = _names(kind)
    return {name: value for name, value in (given or {}).items() if name in names}
