"""How one model is sharded: its groups, the layers that ranks share, and what stays whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from accel_backends.plans.sources import resolve_plan
from accel_backends.plans.transformers_models import kept_in_fp32
from accel_backends.precisions.forward import cast_norm_inputs, wrap_forward
from accel_backends.sharding.shard import store_in_fp32
from accel_backends.sharding.units import ShardGroup, shard_groups, whole_parameters
from accel_backends.transforms.activation_checkpointing import checkpoint_units
from accel_backends.transforms.compile import compile_units
from accel_backends.transforms.expert_parallel import without_experts
from accel_backends.transforms.tensor_parallel import TensorParallel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accel_backends.plans.plan import ParallelPlan
    from accel_backends.plugins.dynamo import TorchDynamoPlugin
    from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin
    from accel_backends.sequences.axis import SequenceAxis
    from accel_backends.sharding.settings import ShardSettings
    from accel_backends.transforms.expert_parallel import ExpertParallel
    from accel_ops.named_tensors import NamedTensor


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How one model is sharded.

    Attributes:
        groups: What is gathered together, the root last.
        whole: First names of the parameters that stay whole on every rank.
        layers: The layers that ranks share, None where they share none.
        experts: The experts that are spread over ranks, None where none are.
    """

    groups: tuple[ShardGroup, ...]
    whole: list[str]
    layers: TensorParallel | None
    experts: ExpertParallel | None = None

    @property
    def cut_layers(self) -> list[Callable[[Sequence[NamedTensor]], None]]:
        """What cuts layers over other axes, before they are sharded."""
        return [parallel.cut for parallel in (self.layers, self.experts) if parallel is not None]


def plan_sharding(
    model: nn.Module,
    plugin: FullyShardedDataParallelPlugin,
    settings: ShardSettings,
    *,
    layer_mesh: DeviceMesh | None,
    experts_of: Callable[[nn.Module, ParallelPlan], ExpertParallel | None],
    sequences: SequenceAxis | None,
    dynamo: TorchDynamoPlugin | None,
) -> ShardPlan:
    """Return how ``model`` is sharded; its units compute activations again and are compiled, if that is asked for.

    Args:
        model: The model, on any device.
        plugin: The settings of the user.
        settings: What follows from them for this run.
        layer_mesh: The ranks that share each layer.
        experts_of: Returns which experts of the model are spread over ranks.
        sequences: How ranks share sequences, None where they do not.
        dynamo: How units are compiled.

    Raises:
        ConfigError: If the plan does not fit the model.
    """
    plan = resolve_plan(model, given=plugin.parallel_plan, policy=plugin.units_policy())
    units = [model.get_submodule(name) for name in plan.units]
    if sequences is not None:
        sequences.attach(model, plan)
    experts = experts_of(model, plan)
    if experts is not None:
        plan = without_experts(plan, experts.modules)
    layers = None if layer_mesh is None else TensorParallel(model, plan, layer_mesh)
    if plugin.activation_checkpointing:
        checkpoint_units(
            units,
            offloads_inputs=bool(plugin.activation_checkpointing_offload),
            is_selective=plugin.selective_checkpointing,
            bind=None if sequences is None else sequences.sharing.bound,
            # torch traces no change of what is shared, and torch 2.13 fails on layers split over ranks.
            is_traceable=sequences is None and layers is None,
        )
    if dynamo is not None:
        compile_units(units, dynamo)
    whole = whole_parameters(model, plugin.ignored_modules)
    groups = shard_groups(
        model,
        units=plan.units,
        tail=plan.tail,
        fp32=_keep_fp32(model, settings, whole=whole),
        whole=whole,
        experts=() if experts is None else tuple(experts.modules),
    )
    return ShardPlan(groups, whole, layers, experts)


def _keep_fp32(model: nn.Module, settings: ShardSettings, *, whole: Sequence[str]) -> list[str]:
    """Return the modules that compute in fp32 although the run does not, and store the ``whole`` parameters in fp32."""
    low, device_type = settings.policy.param_dtype, settings.device.type
    if low is None:
        return []
    fp32, casts = kept_in_fp32(model, low), not settings.policy.cast_forward_inputs
    if casts:
        for name in fp32:
            wrap_forward(model.get_submodule(name), device_type=device_type, dtype=low, enabled=False)
        if device_type == "cpu":
            cast_norm_inputs(model)
    # Ignored modules in 16 bits get inputs in 16 bits where no autocast casts them.
    store_in_fp32(one for one in map(model.get_parameter, whole) if casts or one.dim() == 0)
    return fp32
