"""Making an engine from a model, its optimizer and scheduler, and a config."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accel_backends.autocast_forward import wrap_forward
from accel_backends.compile import compile_regions_deepspeed
from accel_backends.plugins.deepspeed.config_tree import value_of
from accel_backends.plugins.deepspeed.loading import join_group, load_deepspeed
from accel_backends.plugins.dynamo import TorchDynamoPlugin
from accel_backends.strategies.checks import place_model
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.deepspeed.cpu_optimizers import map_pytorch_optim_to_deepspeed
from accel_backends.strategies.deepspeed.dummies import DummyOptim, DummyScheduler
from accel_backends.strategies.deepspeed.pairing import Part
from accel_backends.strategies.deepspeed.unserved import check_served, check_swapped_gradients
from accel_ops.nested.structures import recursively_apply
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel_backends.strategies.deepspeed.sequences import SharedSequences
    from accel_backends.strategies.deepspeed.shared_layers import SharedLayers


def start_engine(
    part: Part,
    config: dict[str, Any],
    *,
    context: StrategyContext,
    sequences: SharedSequences | None = None,
    layers: SharedLayers | None = None,
) -> Any:
    """Return a new engine for ``part``. Communicates: all ranks.

    Args:
        part: The model and what it is trained with; without an optimizer the engine only computes outputs.
        config: The filled config, which is DeepSpeed's from then on.
        context: The run.
        sequences: The ranks that share sequences, if any do.
        layers: The ranks that share layers, if any do.

    Raises:
        ConfigError: If nothing says the batch size, an optimizer has no version for the CPU, the config asks for what
            this run cannot do, or sequences or layers of this model cannot be shared.
    """
    if not {"train_micro_batch_size_per_gpu", "train_batch_size"} & config.keys():
        raise ConfigError(
            "Nothing says the batch size, which DeepSpeed needs. Prepare the loader in the same call as the model, or "
            "set `train_micro_batch_size_per_gpu` in the DeepSpeed config."
        )
    check_served(config, device_type=context.device.type)
    deepspeed = load_deepspeed(context.runtime)
    join_group(deepspeed)
    options: dict[str, Any] = {}
    if part.optimizer is None:
        for section in ("optimizer", "scheduler"):
            config.pop(section, None)
    elif isinstance(part.optimizer, DummyOptim):
        options["model_parameters"] = part.optimizer.params
    else:
        # DeepSpeed has a list of those that it was tested with; torch's own are on it only in part.
        config["zero_allow_untested_optimizer"] = True
        options["optimizer"] = _on_device_of_states(part.optimizer, config)
    if isinstance(part.scheduler, DummyScheduler) and part.scheduler.lr_scheduler_callable is not None:
        options["lr_scheduler"] = part.scheduler.lr_scheduler_callable
    elif type(part.scheduler).__module__ == deepspeed.runtime.lr_schedules.__name__:
        options["lr_scheduler"] = part.scheduler
    if sequences is not None and part.optimizer is not None:
        options["mpu"] = sequences.attach(part.model, config, device=context.device)
    if layers is not None:
        options["mpu"] = layers.attach(part.model, config)
    if _dtype_of(config) is torch.float16 and not deepspeed.get_accelerator().is_fp16_supported():
        raise ConfigError(f"DeepSpeed has no fp16 on `{context.device.type}`. Use `mixed_precision=bf16`.")
    engine, *_ = deepspeed.initialize(model=part.model, config=config, dist_init_required=False, **options)
    check_swapped_gradients(engine)
    if layers is not None:
        layers.finish(part.model)
    dtype = _dtype_of(config)
    if dtype is not None:  # inputs are the engine's: it casts them with `fp16.auto_cast`
        wrap_forward(part.model, device_type=context.device.type, dtype=dtype, enabled=False)
        engine.forward = _name_dtypes(engine.forward, dtype)
    _compile(engine, context.dynamo)
    return engine


def _name_dtypes(forward: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """Return ``forward`` with errors about dtypes that name those of the inputs."""

    @functools.wraps(forward)
    def forward_named(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except RuntimeError as error:
            inputs = {**{f"argument {index}": one for index, one in enumerate(args)}, **kwargs}.items()
            floats = {
                key: one.dtype for key, one in inputs if torch.is_tensor(one) and one.is_floating_point()
            }
            others = [f"`{key}` is {found}" for key, found in floats.items() if found != dtype]
            if "dtype" not in str(error) or not others:
                raise
            raise ConfigError(
                f"The parameters of the engine are {dtype}, but of the inputs {', '.join(others)}: {error}. Cast "
                f"features (`batch.to({dtype})`), or use a `torch_autocast` section in the DeepSpeed config."
            ) from error

    return forward_named


def _compile(engine: Any, dynamo: TorchDynamoPlugin | None) -> None:
    """Compile in place, so that the hooks and the parameters of the engine stay where they are."""
    if dynamo is None:
        return
    if dynamo.use_regional_compilation:
        compile_regions_deepspeed(engine.module, **dynamo.to_kwargs())
    else:  # by the engine, which alone knows its `compile` section (DeepCompile)
        kwargs = dynamo.to_kwargs()
        engine.compile(backend=kwargs.pop("backend"), compile_kwargs=kwargs)


def _on_device_of_states(optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> torch.optim.Optimizer:
    """Return DeepSpeed's version of an optimizer whose states are kept on the CPU, unless the config keeps yours."""
    is_offloaded = value_of(config, "zero_optimization.offload_optimizer.device", "none") not in (
        None,
        "none",
    )
    if not is_offloaded or config.get("zero_force_ds_cpu_optimizer") is False:
        return optimizer
    return map_pytorch_optim_to_deepspeed(optimizer)


def _dtype_of(config: dict[str, Any]) -> torch.dtype | None:
    if value_of(config, "bf16.enabled") is True:
        return torch.bfloat16
    return torch.float16 if value_of(config, "fp16.enabled") is True else None


def place_for_evaluation(model: nn.Module, config: dict[str, Any], *, context: StrategyContext) -> nn.Module:
    """Put a model on the device, in the width of the config, where ZeRO has nothing to share: it trains nothing."""
    dtype = _dtype_of(config)
    place_model(model, context.device)
    if dtype is not None:
        kept = _kept_in_fp32(model, dtype)
        for name, parameter in model.named_parameters():
            is_kept = any(f".{module}." in f".{name}." for module in kept)
            # float8 has its scales elsewhere
            if parameter.is_floating_point() and parameter.itemsize > 1 and not is_kept:
                parameter.data = parameter.data.to(dtype)
        wrap_forward(model, device_type=context.device.type, dtype=dtype, enabled=False)
        if dtype is torch.float16 and value_of(config, "fp16.auto_cast") is True:
            model.register_forward_pre_hook(_cast_inputs, with_kwargs=True)
    return model


def _kept_in_fp32(model: nn.Module, dtype: torch.dtype) -> set[str]:
    """Return the names of modules that transformers keeps in fp32: some only next to fp16, others next to bf16 too."""
    attributes = ["_keep_in_fp32_modules_strict"] + ["_keep_in_fp32_modules"] * (dtype is torch.float16)
    return {
        name
        for module in model.modules()
        for attribute in attributes
        for name in getattr(module, attribute, None) or ()
    }


def _cast_inputs(model: nn.Module, *inputs: Any) -> Any:
    return recursively_apply(lambda each: each.half() if each.is_floating_point() else each, inputs)
