"""Where a model is placed, and checks before a model or an optimizer is prepared."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from accel_ops.named_tensors import tied_names
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.user_warnings import warn_user

QUANTIZED = ("is_loaded_in_8bit", "is_loaded_in_4bit")
"""Attributes by which libraries mark a quantized model."""

NAMED = 3
"""The number of parameters that a message lists by place and shape."""

_SAME_BATCHES = ("pp", "cp", "sp", "tp")
"""Axes along which ranks read the same batches; libraries use the names of `MeshLayout`."""
_OF_EXPERTS = ("ep", "efsdp", "edp_shard")
"""Axes of a second view of the same ranks, for experts."""


def model_devices(model: nn.Module) -> set[torch.device]:
    """Return the devices of the parameters and buffers of ``model``, meta included."""
    return {tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())}


def place_model(model: nn.Module, device: torch.device) -> nn.Module:
    """Move ``model`` to ``device`` and return it; a model that is on it, or on several devices, stays as it is.

    Tied weights stay tied. Between the CPU and most accelerators parameters are moved in place, so that existing
    optimizers keep them; if torch creates new ones (XLA, meta) the caller replaces them in optimizers.
    """
    if model_devices(model) == {device} or is_spread(model):
        return model
    ties = tied_names(model)
    model.to(device)
    for first, *others in ties:
        for name in others:
            _set_parameter(model, name, model.get_parameter(first))
    return model


def _set_parameter(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, attribute = name.rpartition(".")
    model.get_submodule(owner)._parameters[attribute] = parameter


def is_spread(model: nn.Module) -> bool:
    """Whether ``model`` was placed on several devices on purpose, with a device map or by hand."""
    device_map = getattr(model, "hf_device_map", None)
    if device_map is not None:
        return len(set(device_map.values())) > 1
    return len(model_devices(model) - {torch.device("cpu")}) > 1


def unknown_parameters(optimizer: torch.optim.Optimizer, known: Iterable[torch.Tensor]) -> Iterator[str]:
    """Yield place and shape of each parameter in `optimizer` that is not among the `known`."""
    known_ids = {id(parameter) for parameter in known}
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if id(parameter) not in known_ids:
                yield f"parameter {index} of group {group_index}, of shape {tuple(parameter.shape)}"


def check_parameters(
    optimizer: torch.optim.Optimizer,
    known: Iterable[torch.Tensor],
    *,
    num_processes: int,
) -> None:
    """Check that an optimizer steps parameters of prepared models only; with one process, others are a warning.

    With several processes, gradients of other parameters would not be averaged, and the replicas would diverge.

    Args:
        optimizer: The optimizer, not prepared yet.
        known: Parameters of the models that are prepared for training, or will be in the same call.
        num_processes: Processes in the run.

    Raises:
        ConfigError: With several processes, if there is such a parameter.
    """
    unknown = list(unknown_parameters(optimizer, known))
    if not unknown:
        return
    total = sum(len(group["params"]) for group in optimizer.param_groups)
    more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
    sentence = (
        f"{len(unknown)} of the {total} parameters of the {type(optimizer).__name__} to prepare belong to no "
        f"prepared model: {'; '.join(unknown[:NAMED])}{more}. "
    )
    hint = (
        "Prepare the model in the same call or before, and make the optimizer from the model that is "
        "prepared; step an optimizer of other parameters without preparing it."
    )
    if num_processes > 1:
        raise ConfigError(f"{sentence}Their gradients would not be averaged over the processes. {hint}")
    warn_user(f"{sentence}With several processes that is an error. {hint}")


def has_device_map(model: nn.Module) -> bool:
    """Whether a device map has placed `model` on several devices; CPU and disk count as devices."""
    maps = (getattr(module, "hf_device_map", None) or {} for module in model.modules())
    return any(len({str(place) for place in device_map.values()}) > 1 for device_map in maps)


def check_placement(model: nn.Module, *, num_processes: int, is_bypassed: bool) -> None:
    """Check that several processes do not train a model that a device map has placed on several devices.

    All processes would use the same devices. `ACCELERATE_BYPASS_DEVICE_MAP=true` (`is_bypassed`) skips the check if
    every process has devices of its own. A quantized model with offloaded weights fails on any number of processes.

    Raises:
        ConfigError: If it does, or the model is quantized and offloaded.
    """
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    is_quantized = any(getattr(model, name, False) for name in QUANTIZED)
    if is_quantized and ("disk" in places or ("cpu" in places and len(places) > 1)):
        raise ConfigError(
            f"The {type(model).__name__} to prepare is quantised, and its device map offloads a part of it, so that it "
            "cannot be trained. Load it with a `device_map` that has all of it on one device."
        )
    if num_processes > 1 and not is_bypassed and has_device_map(model):
        raise ConfigError(
            f"The {type(model).__name__} to prepare was spread over several devices with a device map, so it "
            f"cannot be trained by {num_processes} processes at once: each needs the model on its own device. "
            "Load it without `device_map`, start one process, or, if every process has its own devices, set "
            "`ACCELERATE_BYPASS_DEVICE_MAP=true`."
        )


def check_library_mesh(
    model: nn.Module, layout: MeshLayout, *, strategy: str, shards_parameters: bool
) -> None:
    """Check that a model which a library has sharded is sharded over the mesh of this run.

    Otherwise its ranks would read the wrong batches, or its gradients would not be averaged.

    Args:
        model: The model. One without `DTensor`s passes.
        layout: The layout of the run.
        strategy: The name of the strategy.
        shards_parameters: Whether the strategy leaves models as they are that are sharded already.

    Raises:
        ConfigError: If it is not; names the axis and both sizes.
    """
    sizes = _library_axes(model)
    if not sizes:
        return
    spread = f"The {type(model).__name__} to prepare was spread over {_listed(sizes)} before"
    num_data_ranks = math.prod(size for axis, size in sizes.items() if axis not in _SAME_BATCHES)
    for axis, size in sizes.items():
        if axis in _SAME_BATCHES and size != getattr(layout, axis):
            asked = getattr(layout, axis)
            advice = f"Pass `parallelism_config=ParallelismConfig({axis}_size={size})`"
            if asked > 1:  # transformers 5.24 ignores `device_mesh`
                others = f"{axis}_size={asked}, fsdp_size={layout.world_size // asked}"
                advice = f"Load it with `distributed_config=DistributedConfig({others})`"
            raise ConfigError(
                f"{spread}: the {size} ranks of `{axis}` must read the same batches. This run gives each of "
                f"{layout.num_data_ranks} ranks batches of its own. {advice}, or load the model whole, without "
                "`tp_plan`, `device_mesh` or such sizes in `DistributedConfig`, and let `prepare` shard it."
            )
    if layout.pp > 1:
        raise ConfigError(
            f"{spread}, and `pp_size` {layout.pp} makes stages of models that are not sharded yet. Load it unsharded: "
            "`prepare` shards the stages, over `tp` too."
        )
    shards_rest = shards_parameters and set(sizes) == {"tp"}  # beside the layers, which stay as they are
    if num_data_ranks != layout.num_data_ranks and not shards_rest:
        raise ConfigError(
            f"{spread}, but in this run {layout.num_data_ranks} ranks read batches of their own, whose gradients "
            "it would not average. Let its mesh have them all, or load it whole and let `prepare` shard it."
        )
    if not shards_parameters:
        raise ConfigError(
            f"{spread}, and the strategy `{strategy}` trains whole models. Pass "
            "`fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)`, which leaves it as it is, or load it whole."
        )


def has_library_mesh(model: nn.Module) -> bool:
    """Whether a library has sharded a model, which then averages its gradients without a strategy."""
    return bool(_library_axes(model))


def _library_axes(model: nn.Module) -> dict[str, int]:
    """Return the axes above 1, with their sizes, of the meshes over which the parameters of a model are sharded."""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is None:  # no `DTensor` exists
        return {}
    meshes = {one.device_mesh: None for one in model.parameters() if isinstance(one, tensors.DTensor)}
    sizes: dict[str, int] = {}
    for mesh in meshes:
        names = mesh.mesh_dim_names or [f"axis {number}" for number in range(mesh.ndim)]
        sizes |= dict(zip(names, mesh.shape, strict=True))
    return {axis: size for axis, size in sizes.items() if size > 1 and axis not in _OF_EXPERTS}


def _listed(sizes: Mapping[str, int]) -> str:
    return " and ".join(f"{size} ranks (`{axis}`)" for axis, size in sizes.items())
