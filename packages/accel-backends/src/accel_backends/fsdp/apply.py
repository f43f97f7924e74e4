"""Apply a plan to one model: transform its units, shard it, and set up what runs it, in the one order that works."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from accel_backends.activation_checkpointing import checkpoint_units
from accel_backends.autocast_forward import cast_norm_inputs, wrap_forward
from accel_backends.compile import compile_forwards
from accel_backends.expert_parallel.parallel import ExpertParallel, without_experts
from accel_backends.fsdp.gathering import (
    check_unit_order,
    gather_for_entries,
    gather_once,
    set_prefetching,
)
from accel_backends.fsdp.groups import (
    ROOT,
    ShardGroup,
    shard_groups,
    tensors_of_groups,
    whole_parameters,
)
from accel_backends.fsdp.replicated import UnusedParameters
from accel_backends.fsdp.values import (
    ReceiveBuffer,
    check_same_model,
    initialize,
    replace_tensor,
    take_values_of_rank_0,
    values_in_files,
)
from accel_backends.own_random_numbers import draw_own_numbers
from accel_backends.plans.sources import resolve_plan
from accel_backends.plans.transformers_models import kept_in_fp32
from accel_backends.tensor_parallel.parallel import (
    TensorParallel,
    are_layers_sharded,
    own_outputs,
    share_random_state,
)
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accel_backends.fsdp.config import FSDPConfig
    from accel_backends.plugins.dynamo import TorchDynamoPlugin
    from accel_backends.precisions.precision import GatheredWeights
    from accel_backends.sequence_parallel.axis import SequenceAxis
    from accel_ops.named_tensors import NamedTensor

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class RunAxes:
    """What a run splits over ranks.

    Attributes:
        device: The device of this rank.
        mesh: One axis, over which parameters are sharded; or two, of which the first has replicas.
        layer_mesh: The TP ranks; None without tensor parallelism.
        sequences: How ranks share sequences; None if they do not.
        expert_mesh: Like ``mesh``, for experts that are split over ranks: those that have the same ones.
        dispatch_mesh: The ranks that split the experts of a layer; None without expert parallelism.
        expert_gradient_scale: Multiplies the gradients of these experts.
        sequence_index: The number of this rank among those that have other tokens of the same sequences; None if it
            has all tokens.
        layer_sequence_index: The same if TP ranks have other tokens, too.
    """

    device: torch.device
    mesh: DeviceMesh
    layer_mesh: DeviceMesh | None = None
    sequences: SequenceAxis | None = None
    expert_mesh: DeviceMesh | None = None
    dispatch_mesh: DeviceMesh | None = None
    expert_gradient_scale: float = 1.0
    sequence_index: int | None = None
    layer_sequence_index: int | None = None


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How one model is sharded.

    Attributes:
        groups: What is gathered together, the root last.
        whole: First names of the parameters that stay replicated.
        layers: The layers to shard over the TP ranks; None without any, or if a library has sharded them.
        experts: The experts that are spread over ranks; None without any.
    """

    groups: tuple[ShardGroup, ...]
    whole: list[str]
    layers: TensorParallel | None
    experts: ExpertParallel | None = None

    @property
    def cut_layers(self) -> list[Callable[[Sequence[NamedTensor]], None]]:
        """What splits layers over other axes, before they are sharded."""
        return [parallel.cut for parallel in (self.layers, self.experts) if parallel is not None]


def apply_sharding(
    model: nn.Module,
    tensors: Sequence[NamedTensor],
    config: FSDPConfig,
    axes: RunAxes,
    *,
    dynamo: TorchDynamoPlugin | None,
    gathering: GatheredWeights | None,
) -> ShardPlan:
    """Transform and shard ``model`` in place and return how. Every rank must call it.

    Args:
        model: The model, on any device.
        tensors: Its parameters and buffers.
        config: The settings of the user.
        axes: What the run splits over ranks.
        dynamo: How units are compiled; None does not compile them.
        gathering: How the precision all-gathers weights; None if they are gathered as they are.

    Raises:
        ConfigError: If the plan does not fit the model.
        CheckpointError: If the files of weights do not.
    """
    kind = type(model).__name__  # which `fully_shard` changes
    plan = transform_units(model, tensors, config, axes, dynamo=dynamo)
    # TP and EP before FSDP, group by group: `fully_shard` shards what they leave to this rank, and at no time has a
    # rank more than one unsharded group. The precision wraps weights last, so that FSDP gathers its dtype.
    cut_layers = plan.cut_layers
    if gathering is not None:
        cut_layers.append(partial(gathering.wrap, num_shards=axes.mesh.size(axes.mesh.ndim - 1)))
    shard_model(
        model,
        tensors,
        plan.groups,
        config,
        axes,
        whole=plan.whole,
        cut_layers=cut_layers,
    )
    # After sharding, which makes the modules `FSDPModule`s.
    forward, backward = config.num_forward_prefetch, config.num_backward_prefetch
    set_prefetching(model, plan.groups, forward=forward, backward=backward)
    # After the weights have their values: `param_init_fn` draws random numbers on rank 0 only.
    if axes.layer_mesh is not None:
        share_random_state(axes.layer_mesh, axes.device)
    # Around the forward of the root, compiled or not: torch traces no change of a generator.
    is_in_layers = plan.layers is not None and plan.layers.is_in_sequence
    number = axes.layer_sequence_index if is_in_layers else axes.sequence_index
    if number is not None:
        draw_own_numbers(model, number=number, device=axes.device)
    # Now that all groups exist: torch takes the first module that runs for the root, which a user may not run first.
    gather_once(model, plan.groups)
    # Nor the root at all: modules with parameters of its group, and other methods, gather it themselves.
    gather_for_entries(model, config.forward_methods)
    # Last, since these hooks must run before those that gather.
    names = [name for group in plan.groups for name in group.modules]
    check_unit_order(model, {name: model.get_submodule(name) for name in names}, kind=kind)
    return plan


def transform_units(
    model: nn.Module,
    tensors: Sequence[NamedTensor],
    config: FSDPConfig,
    axes: RunAxes,
    *,
    dynamo: TorchDynamoPlugin | None,
) -> ShardPlan:
    """Do in place what comes before sharding, and return how the model is to be sharded; see `apply_sharding`."""
    plan = resolve_plan(model, given=config.parallel_plan, policy=config.units)
    units = [model.get_submodule(name) for name in plan.units]
    # Attention first: it is part of what is recomputed and compiled.
    if axes.sequences is not None:
        axes.sequences.attach(model, plan)
    has_sharded_layers = axes.layer_mesh is not None and are_layers_sharded(model, axes.layer_mesh)
    experts = None
    if axes.dispatch_mesh is not None:
        if has_sharded_layers:
            raise ConfigError(
                f"The layers of the {type(model).__name__} to prepare are sharded over the ranks of `tp` already, and "
                "`ep_size` would shard its experts over others. Load it unsharded, and `prepare` does both."
            )
        experts = ExpertParallel(
            model,
            plan,
            axes.dispatch_mesh,
            gradient_scale=axes.expert_gradient_scale,
            layer_mesh=axes.layer_mesh,
        )
        plan = without_experts(plan, experts.modules)  # a layer is split by one axis
    layers = None
    if has_sharded_layers:
        own_outputs(model.get_submodule(name) for name in (*plan.units, *plan.tail))
    elif axes.layer_mesh is not None:
        layers = TensorParallel(model, plan, axes.layer_mesh)
    # Checkpointing before compiling: torch then compiles forward and recomputation of a block as one graph.
    if config.activation_checkpointing:
        checkpoint_units(
            units,
            offloads_inputs=config.activation_checkpointing_offload,
            is_selective=config.selective_checkpointing,
            bind=None if axes.sequences is None else axes.sequences.sharing.bound,
            # torch traces no change of what is shared, and torch 2.13 fails on layers split over ranks.
            is_traceable=axes.sequences is None and axes.layer_mesh is None,
        )
    # Compiling before sharding: the hooks of `fully_shard` wait for collectives, which would break the graphs.
    if dynamo is not None:
        compile_forwards(units or [model], **dynamo.to_kwargs())
    # Dtypes before groups, since modules in fp32 have their own.
    parameters = [found for found in tensors if found.is_parameter]
    whole = whole_parameters(model, parameters, config.ignored_modules)
    fp32 = _keep_fp32(model, config.policy, device_type=axes.device.type, whole=whole)
    groups = shard_groups(
        model,
        parameters,
        units=plan.units,
        tail=plan.tail,
        fp32=fp32,
        whole=whole,
        experts=() if experts is None else tuple(experts.modules),
    )
    return ShardPlan(groups, whole, layers, experts)


def _keep_fp32(
    model: nn.Module, policy: MixedPrecisionPolicy, *, device_type: str, whole: Sequence[str]
) -> list[str]:
    """Return the modules that compute in fp32 although the run does not, and store the ``whole`` parameters in fp32."""
    low = policy.param_dtype
    if low is None:
        return []
    fp32, casts = kept_in_fp32(model, low), not policy.cast_forward_inputs
    if casts:
        for name in fp32:
            wrap_forward(model.get_submodule(name), device_type=device_type, dtype=low, enabled=False)
        if device_type == "cpu":
            cast_norm_inputs(model)
    # Ignored modules in 16 bits get inputs in 16 bits where no autocast casts them.
    store_in_fp32(one for one in map(model.get_parameter, whole) if casts or one.dim() == 0)
    return fp32


def shard_model(
    model: nn.Module,
    tensors: Sequence[NamedTensor],
    groups: Sequence[ShardGroup],
    config: FSDPConfig,
    axes: RunAxes,
    *,
    whole: Collection[str] = (),
    cut_layers: Sequence[Callable[[Sequence[NamedTensor]], None]] = (),
) -> None:
    """Shard ``model`` in place; its parameters become `DTensor`s under the same names.

    Every rank must call it. All ranks take the values of rank 0; other ranks may hold them on the meta device. Of
    what is on the meta device on rank 0, too, each rank reads its rows from files. At no time is more than one group
    held in whole beside what the caller keeps.

    Args:
        model: The model.
        tensors: Its parameters and buffers.
        groups: From `shard_groups`; the root is the last.
        config: How to shard, and from which files values come.
        axes: Over which ranks.
        whole: First names of the parameters that stay whole on every rank.
        cut_layers: Each is called with the parameters of each group, when they have their values, to cut the layers
            that hold them over another axis before.

    Raises:
        ConfigError: If the ranks have different models, or rank 0 has no values and there are no files.
        CheckpointError: If the files do not fit the model or cannot be read.
    """
    missing = check_same_model(tensors, device=axes.device)
    init_module = config.init_module
    if init_module is not None and config.files is None:
        missing = []
    in_files = {found.names[0] for found in missing}
    values = values_in_files(model, tensors, missing, config.files)
    modules = dict(model.named_modules(remove_duplicate=False))
    cut = {id(found) for found in tensors if found.is_parameter and found.names[0] not in whole}
    buffer = ReceiveBuffer(device=axes.device)
    for group, members in zip(groups, tensors_of_groups(tensors, groups), strict=True):
        sharded = [found for found in members if id(found) in cut]
        # Shards that a library has loaded differ between ranks.
        received = [
            found
            for found in members
            if found.names[0] not in in_files and not isinstance(found.tensor, DTensor)
        ]
        if init_module is not None and dist.get_rank() == 0:
            initialize(received, init_module)
        buffer.lend([found for found in sharded if found.names[0] not in in_files])
        take_values_of_rank_0(received, device=axes.device)
        for found in members:
            if values is not None and found.names[0] in in_files and id(found) not in cut:
                values.fill(found, device=axes.device)
        shard_group(
            [modules[name] for name in group.modules],
            group,
            sharded,
            config,
            axes,
            ignored={model.get_parameter(name) for name in whole},
            cut_layers=cut_layers,
        )
        for found in sharded:
            if values is not None and found.names[0] in in_files:
                values.fill_shard(found, device=config.shard_device(axes.device))
    if values is not None:
        values.finish()
    if axes.mesh.size() > 1:
        UnusedParameters(model, reduces_all=axes.mesh.ndim > 1)


def shard_group(
    members: list[nn.Module],
    group: ShardGroup,
    owned: Sequence[NamedTensor],
    config: FSDPConfig,
    axes: RunAxes,
    *,
    ignored: Collection[nn.Parameter],
    cut_layers: Sequence[Callable[[Sequence[NamedTensor]], None]] = (),
) -> None:
    """Cut the parameters of one group, which have their values, over the ranks of the mesh.

    Args:
        members: Its modules.
        group: How it is gathered.
        owned: The parameters that are sharded, on the device.
        config: How to shard.
        axes: Over which ranks.
        ignored: Parameters of the modules that stay whole.
        cut_layers: Each is called with ``owned`` to cut the layers that hold them over another axis before.
    """
    mesh, policy = axes.mesh, config.policy
    if group.has_experts:
        assert axes.expert_mesh is not None
        mesh = axes.expert_mesh
    if policy.param_dtype is not None:  # the shards are the master weights
        for found in owned:
            if not isinstance(found.tensor, DTensor):
                store_in_fp32([found.tensor])
            elif found.tensor.requires_grad and found.tensor.dtype in _HALF:
                # The dtype of a `DTensor` is not in its `data`.
                replace_tensor(found, found.tensor.detach().float())
    for cut in cut_layers:
        cut(owned)
    # Why: docs/decisions/0011-models-are-always-sharded-through-one-path.md
    fully_shard(
        _unit(members),
        mesh=mesh,
        reshard_after_forward=not group.is_tail
        and ROOT not in group.modules
        and _resharding(config, mesh.size(mesh.ndim - 1)),
        mp_policy=replace(policy, param_dtype=None) if group.keeps_fp32 else policy,
        offload_policy=config.offload,
        ignored_params=set(ignored) or None,
        shard_placement_fn=config.shard_placement_fn,
    )
    for found in owned:
        # The shard has its own memory. An optimizer made before may hold the whole parameter until it is
        # prepared, and so would keep the memory of the whole model.
        with torch.no_grad():  # for a shard's memory, no view of it
            local = found.tensor.to_local() if isinstance(found.tensor, DTensor) else found.tensor
        local.data = local.data.new_empty(0)


def _unit(members: list[nn.Module]) -> nn.Module | list[nn.Module]:
    """Return what `fully_shard` takes for a group.

    Before torch 2.13 it refuses a single `ModuleList` or `ModuleDict`, even one that can be called, but takes it in a
    list. Delete this when we require that release.
    """
    (first, *others) = members
    is_container = isinstance(first, (nn.ModuleList, nn.ModuleDict))
    is_called = type(first).forward is not nn.Module.forward
    return members if others or (is_container and is_called) else first


def _resharding(config: FSDPConfig, num_shards: int) -> bool | int:
    """Return what `fully_shard` takes, which refuses more ranks than share the parameters."""
    reshard = config.reshard_after_forward
    if isinstance(reshard, bool) or reshard >= num_shards:
        return bool(reshard)
    config.check_resharding(num_shards)
    return reshard


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters of ``model`` are spread over ranks already, whoever did it."""
    return isinstance(model, FSDPModule) or any(
        isinstance(parameter, DTensor) for parameter in model.parameters()
    )


def store_in_fp32(parameters: Iterable[torch.Tensor]) -> None:
    """Convert trained parameters of half precision to fp32, in place."""
    for tensor in parameters:
        if tensor.requires_grad and tensor.dtype in _HALF:
            tensor.data = tensor.data.float()
